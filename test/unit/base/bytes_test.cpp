#include "backend/base/bytes.h"

#include <catch2/catch.hpp>
#include <limits>

#include "backend/wire/frame.h"

using namespace torchwire;

TEST_CASE("what is written is read back", "[bytes]") {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(uint8_t{200});
  out.number(int32_t{-5});
  out.number(std::numeric_limits<uint64_t>::max());
  out.number(2.5);
  out.number(FrameKind::goodbye);
  out.string("grüß Gott");
  out.string("");
  out.raw("xyz", 3);
  CHECK(out.position() == bytes.size());

  ByteReader in(bytes);
  CHECK(in.number<uint8_t>() == 200);
  CHECK(in.number<int32_t>() == -5);
  CHECK(in.number<uint64_t>() == std::numeric_limits<uint64_t>::max());
  CHECK(in.number<double>() == 2.5);
  CHECK(in.number<FrameKind>() == FrameKind::goodbye);
  CHECK(in.string() == "grüß Gott");
  CHECK(in.string().empty());
  CHECK(std::string(in.raw(3), 3) == "xyz");
  CHECK(in.remaining() == 0);
}

TEST_CASE("numbers are little-endian and unpadded", "[bytes]") {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(uint8_t{1});
  out.number(uint32_t{0x05040302});
  CHECK(bytes == std::vector<char>{1, 2, 3, 4, 5});
}

TEST_CASE("a string may contain zero bytes", "[bytes]") {
  const std::string text("a\0b", 3);
  std::vector<char> bytes;
  ByteWriter(bytes).string(text);
  CHECK(ByteReader(bytes).string() == text);
}

TEST_CASE("nothing at all can be written and read", "[bytes]") {
  std::vector<char> bytes;
  ByteWriter(bytes).raw(nullptr, 0);
  CHECK(bytes.empty());
  ByteReader in(bytes);
  CHECK_NOTHROW(in.raw(0));
  CHECK(in.remaining() == 0);
}

TEST_CASE("a short buffer is refused and says by how much", "[bytes]") {
  const std::vector<char> bytes = {1, 2, 3};
  CHECK_THROWS_AS(ByteReader(bytes).number<uint32_t>(), FormatError);
  CHECK_THROWS_WITH(ByteReader(bytes).raw(5), "expected 5 more bytes, found 3");
  CHECK_THROWS_AS(ByteReader(nullptr, 0).number<uint8_t>(), FormatError);
}

TEST_CASE("a failed read takes nothing", "[bytes]") {
  const std::vector<char> bytes = {1, 2, 3};
  ByteReader in(bytes);
  CHECK_THROWS_AS(in.number<uint32_t>(), FormatError);
  CHECK(in.remaining() == 3);
  CHECK(in.number<uint8_t>() == 1);
}

TEST_CASE("an absurd length is refused", "[bytes]") {
  const std::vector<char> bytes(16);
  ByteReader in(bytes);
  in.raw(1);
  CHECK_THROWS_AS(in.raw(std::numeric_limits<size_t>::max()), FormatError);
}

TEST_CASE("a string longer than its buffer is refused", "[bytes]") {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(uint32_t{0xffffffff});
  out.raw("short", 5);
  CHECK_THROWS_AS(ByteReader(bytes).string(), FormatError);
}

TEST_CASE("a count is taken only where so many items can follow", "[bytes]") {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(uint32_t{2});
  out.number(uint64_t{7});
  out.number(uint64_t{8});
  CHECK(ByteReader(bytes).count(8) == 2);
  CHECK_THROWS_WITH(ByteReader(bytes).count(9), "a count of 2 exceeds what follows it");
}

TEST_CASE("a hostile count cannot overflow its check", "[bytes]") {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(uint32_t{0xffffffff});
  out.number(uint64_t{0});
  CHECK_THROWS_AS(ByteReader(bytes).count(1), FormatError);
  CHECK_THROWS_AS(ByteReader(bytes).count(sizeof(uint64_t)), FormatError);
  CHECK_THROWS_AS(ByteReader(bytes).count(size_t{1} << 31), FormatError);
}

TEST_CASE("a count of none needs nothing to follow", "[bytes]") {
  std::vector<char> bytes;
  ByteWriter(bytes).number(uint32_t{0});
  CHECK(ByteReader(bytes).count(1000) == 0);
}
