#include "backend/base/one_line.h"

#include <catch2/catch.hpp>

using namespace torchwire;

TEST_CASE("text stays as it is where it is a line", "[one_line]") {
  const std::string text =
      GENERATE("", "ValueError: on purpose", "größer als 3 €, 𝄞", "back\\slash");
  CHECK(oneLine(text, 100) == text);
}

TEST_CASE("what would begin a line or steer a terminal is escaped", "[one_line]") {
  CHECK(oneLine("a\nb\r\x1b[31m\x7f", 100) == "a\\nb\\x0d\\x1b[31m\\x7f");
  CHECK(oneLine(std::string_view("\0", 1), 100) == "\\x00");
  CHECK(oneLine("\xc2\x9b", 100) == "\\xc2\\x9b"); // the same as \x1b[ to some
  CHECK(oneLine("\xe2\x80\xae", 100) == "\\xe2\\x80\\xae"); // writes from right to left
}

TEST_CASE("what is no UTF-8 is escaped", "[one_line]") {
  CHECK(oneLine("\xff", 100) == "\\xff");
  CHECK(oneLine("a\xc3", 100) == "a\\xc3"); // the text ends too soon
  CHECK(oneLine("\xc3z", 100) == "\\xc3z");
  CHECK(oneLine("\xc0\x80", 100) == "\\xc0\\x80"); // longer than need be
  CHECK(oneLine("\xe0\x80\x80", 100) == "\\xe0\\x80\\x80");
  CHECK(oneLine("\xed\xa0\x80", 100) == "\\xed\\xa0\\x80"); // half of a character
  CHECK(oneLine("\xf4\x90\x80\x80", 100) == "\\xf4\\x90\\x80\\x80"); // beyond the last
}

TEST_CASE("what is too long is cut between characters", "[one_line]") {
  CHECK(oneLine("1234567890", 10) == "1234567890");
  CHECK(oneLine("12345678901", 10) == "1234567...");
  CHECK(
      oneLine(
          "123456\xc3\xbc"
          "8901",
          10) == "123456...");
  CHECK(oneLine("\x01\x01\x01\x01", 10) == "\\x01...");
}
