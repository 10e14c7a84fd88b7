#include "backend/tensorpipe/nop_value.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

using namespace torchwire;

namespace {

std::string bytes(std::initializer_list<int> all) {
  std::string text;
  for (const int byte : all) {
    text += static_cast<char>(byte);
  }
  return text;
}

bool isValue(const std::string& text) {
  return isNopValue(text.data(), text.size());
}

// A structure of a number, a text, an array of two, a map of one, a variant, a number of eight bytes and nothing.
const std::string kWhole = bytes({0xb9, 7, 5, 0xbd, 3}) + "abc" + bytes({0xba, 2, 1, 2}) +
    bytes({0xbb, 1, 1, 2}) + bytes({0xb8, 0, 9}) + bytes({0x83, 1, 2, 3, 4, 5, 6, 7, 8}) +
    bytes({0xbe});

} // namespace

TEST_CASE("values of all kinds are values", "[nop_value]") {
  CHECK(isValue(bytes({0})));
  CHECK(isValue(bytes({0x7f})));
  CHECK(isValue(bytes({0xff})));
  CHECK(isValue(bytes({0x80, 200})));
  CHECK(isValue(bytes({0x81, 1, 2})));
  CHECK(isValue(bytes({0x87, 1, 2, 3, 4, 5, 6, 7, 8})));
  CHECK(isValue(bytes({0x88, 1, 2, 3, 4})));
  CHECK(isValue(bytes({0x89, 1, 2, 3, 4, 5, 6, 7, 8})));
  CHECK(isValue(bytes({0xbc, 0})));
  CHECK(isValue(bytes({0xbc, 0x80, 2, 7, 7})));
  CHECK(isValue(bytes({0xb5, 1, 1, 2, 0xbc, 1, 9})));
  CHECK(isValue(kWhole));
}

TEST_CASE("what ends too early, or goes on, is no value", "[nop_value]") {
  for (size_t length = 0; length < kWhole.size(); ++length) {
    CAPTURE(length);
    REQUIRE_FALSE(isValue(kWhole.substr(0, length)));
  }
  CHECK_FALSE(isValue(kWhole + '\0'));
}

TEST_CASE("counts and sizes beyond the end are refused at once", "[nop_value]") {
  CHECK_FALSE(isValue(bytes({0xbd, 0x83, 255, 255, 255, 255, 255, 255, 255, 255, 'a'})));
  CHECK_FALSE(isValue(bytes({0xba, 0x83, 255, 255, 255, 255, 255, 255, 255, 255, 1})));
  CHECK_FALSE(isValue(bytes({0xbb, 0x83, 0, 0, 0, 0, 0, 0, 0, 0x80, 1, 1})));
  CHECK_FALSE(isValue(bytes({0xbd, 0xff, 'a'}))); // a negative size
  CHECK_FALSE(isValue(bytes({0xb9, 0xbd, 'a'})));
}

TEST_CASE("what nobody has defined is no value", "[nop_value]") {
  for (int first = 0x8a; first < 0xb5; ++first) {
    CHECK_FALSE(isValue(bytes({first, 0, 0, 0})));
  }
  CHECK_FALSE(isValue(bytes({0xbf, 0, 0, 0})));
}

TEST_CASE("values within values have a depth", "[nop_value]") {
  const auto nested = [](size_t depth) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) {
      text += bytes({0xba, 1});
    }
    return text + bytes({0});
  };
  CHECK(isValue(nested(30)));
  CHECK_FALSE(isValue(nested(40)));
  CHECK_FALSE(isValue(nested(1'000'000)));
}

TEST_CASE("random bytes are looked at without harm", "[nop_value]") {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text(random() % 40, '\0');
    for (char& byte : text) {
      byte = static_cast<char>(random() % 4 == 0 ? 0xb5 + random() % 10 : random());
    }
    isValue(text); // under sanitizers
  }
  SUCCEED();
}
