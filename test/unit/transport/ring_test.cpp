#include "backend/transport/ring.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "test/unit/support/local_ring.h"

using namespace torchwire;

namespace {

constexpr size_t kCapacity = 64;

// A small ring and both its ends.
struct Ends {
  explicit Ends(size_t capacity = kCapacity)
      : ring(capacity), writer(ring.memory()), reader(ring.memory()) {}

  LocalRing ring;
  RingWriter writer;
  RingReader reader;
};

std::string readAll(RingReader& reader, size_t atMost = 4 * kCapacity) {
  std::string text(atMost, '\0');
  const auto got = reader.read(text.data(), text.size());
  REQUIRE(got.has_value());
  text.resize(*got);
  return text;
}

bool writeAll(RingWriter& writer, const std::string& text) {
  return writer.write(text.data(), text.size()) == text.size();
}

} // namespace

TEST_CASE("what is written to a ring is read from it", "[ring]") {
  Ends ends;
  CHECK(writeAll(ends.writer, "some "));
  CHECK(writeAll(ends.writer, "bytes"));
  CHECK(readAll(ends.reader) == "some bytes");
  CHECK(readAll(ends.reader).empty());
}

TEST_CASE("a read takes no more than it asks for", "[ring]") {
  Ends ends;
  CHECK(writeAll(ends.writer, "abcdef"));
  CHECK(readAll(ends.reader, 4) == "abcd");
  CHECK(readAll(ends.reader, 4) == "ef");
}

TEST_CASE("a ring takes as many bytes as it has capacity, and no more", "[ring]") {
  Ends ends;
  const std::string text(kCapacity, 'x');
  CHECK(ends.writer.isReady());
  CHECK(ends.writer.write(std::string(kCapacity + 1, 'x').data(), kCapacity + 1) == kCapacity);
  CHECK_FALSE(ends.writer.isReady());
  CHECK(ends.writer.write("y", 1) == 0u);
  CHECK(readAll(ends.reader) == text);
  CHECK(ends.writer.isReady());
}

TEST_CASE("bytes wrap around at the end of a ring", "[ring]") {
  for (size_t start = 0; start <= kCapacity; ++start) {
    CAPTURE(start);
    Ends ends;
    REQUIRE(writeAll(ends.writer, std::string(start, '-')));
    readAll(ends.reader);
    std::string text(kCapacity, '\0');
    std::iota(text.begin(), text.end(), 'A');
    CHECK(writeAll(ends.writer, text));
    CHECK(readAll(ends.reader) == text);
    CHECK(ends.ring.isMarginUntouched());
  }
}

TEST_CASE("a long write is told to the reader part by part", "[ring]") {
  constexpr size_t kLarge = size_t{1} << 20;
  Ends ends(kLarge);
  std::vector<char> from(kLarge);
  std::iota(from.begin(), from.end(), 'a');
  std::vector<char> into(kLarge);
  CHECK(ends.writer.write(from.data(), 100) == 100u); // so that it wraps around
  CHECK(ends.reader.read(into.data(), 100) == 100u);
  CHECK(ends.writer.write(from.data(), kLarge) == kLarge);
  CHECK(ends.reader.read(into.data(), kLarge) == kLarge);
  CHECK(into == from);
}

TEST_CASE("to write or read nothing does nothing", "[ring]") {
  Ends ends;
  CHECK(ends.writer.write(nullptr, 0) == 0u);
  CHECK(ends.reader.read(nullptr, 0) == 0u);
  CHECK_FALSE(ends.reader.isReady());
}

// ---- wakeups --------------------------------------------------------------------------------------

TEST_CASE("a reader may sleep only while there is nothing to read", "[ring]") {
  Ends ends;
  CHECK(ends.reader.requestWakeup());
  REQUIRE(writeAll(ends.writer, "x"));
  CHECK_FALSE(ends.reader.requestWakeup());
}

TEST_CASE("a writer may sleep only while there is no room", "[ring]") {
  Ends ends;
  CHECK_FALSE(ends.writer.requestWakeup());
  REQUIRE(writeAll(ends.writer, std::string(kCapacity, 'x')));
  CHECK(ends.writer.requestWakeup());
  readAll(ends.reader, 1);
  CHECK_FALSE(ends.writer.requestWakeup());
}

TEST_CASE("a reader that sleeps gets the wakeup once", "[ring]") {
  Ends ends;
  CHECK_FALSE(ends.writer.takeReaderWakeup());
  REQUIRE(ends.reader.requestWakeup());
  REQUIRE(ends.reader.requestWakeup());
  REQUIRE(writeAll(ends.writer, "x"));
  CHECK(ends.writer.takeReaderWakeup());
  CHECK_FALSE(ends.writer.takeReaderWakeup());
}

TEST_CASE("a writer that sleeps gets the wakeup once", "[ring]") {
  Ends ends;
  REQUIRE(writeAll(ends.writer, std::string(kCapacity, 'x')));
  CHECK_FALSE(ends.reader.takeWriterWakeup());
  REQUIRE(ends.writer.requestWakeup());
  readAll(ends.reader, 1);
  CHECK(ends.reader.takeWriterWakeup());
  CHECK_FALSE(ends.reader.takeWriterWakeup());
}

TEST_CASE("a wakeup that was requested in vain is sent all the same", "[ring]") {
  Ends ends;
  REQUIRE(writeAll(ends.writer, "x"));
  CHECK_FALSE(ends.reader.requestWakeup());
  CHECK(ends.writer.takeReaderWakeup());
}

TEST_CASE("any number in the other side's flag requests one wakeup", "[ring]") {
  Ends ends;
  ends.ring.header.readerSleeps = 0xffffffff;
  CHECK(ends.writer.takeReaderWakeup());
  CHECK_FALSE(ends.writer.takeReaderWakeup());
}

// ---- the other side lies --------------------------------------------------------------------------

TEST_CASE("a reader refuses a writer's index that makes no sense", "[ring]") {
  Ends ends;
  REQUIRE(writeAll(ends.writer, "1234567890"));
  REQUIRE(readAll(ends.reader) == "1234567890");
  // Further ahead than the ring is long; and behind what has been read.
  const uint64_t lie = GENERATE(10 + kCapacity + 1, uint64_t{1} << 32, UINT64_MAX, 0, 9);
  CAPTURE(lie);
  ends.ring.header.written = lie;
  CHECK(ends.reader.isReady()); // so that somebody looks
  std::string into(4 * kCapacity, '=');
  CHECK_FALSE(ends.reader.read(into.data(), into.size()).has_value());
  CHECK(into == std::string(4 * kCapacity, '='));
  CHECK_FALSE(ends.reader.requestWakeup());
}

TEST_CASE("a writer refuses a reader's index that makes no sense", "[ring]") {
  Ends ends;
  REQUIRE(writeAll(ends.writer, std::string(kCapacity, 'x')));
  readAll(ends.reader);
  REQUIRE(writeAll(ends.writer, "1234567890"));
  // Beyond what has been written; and so far back that the ring would hold more than it can.
  const uint64_t lie =
      GENERATE(kCapacity + 11, uint64_t{1} << 32, UINT64_MAX, uint64_t{0}, uint64_t{9});
  CAPTURE(lie);
  ends.ring.header.consumed = lie;
  CHECK(ends.writer.isReady());
  CHECK_FALSE(ends.writer.write("text", 4).has_value());
  CHECK_FALSE(ends.writer.requestWakeup());
  CHECK(ends.ring.isMarginUntouched());
}

TEST_CASE("a reader's index that goes back a little only takes room away", "[ring]") {
  Ends ends;
  REQUIRE(writeAll(ends.writer, std::string(kCapacity, 'x')));
  readAll(ends.reader);
  ends.ring.header.consumed = 10;
  CHECK(ends.writer.write(std::string(kCapacity, 'y').data(), kCapacity) == 10u);
}

TEST_CASE("each side keeps its own index, whatever the shared one says", "[ring]") {
  Ends ends;
  REQUIRE(writeAll(ends.writer, "first "));
  ends.ring.header.written = 12345; // the other side can overwrite this, too
  REQUIRE(writeAll(ends.writer, "second"));
  CHECK(readAll(ends.reader, 6) == "first ");
  ends.ring.header.consumed = 54321;
  CHECK(readAll(ends.reader, 6) == "second");
  CHECK(ends.ring.header.consumed == 12);
}

TEST_CASE("no indices make an end touch what is not the ring's", "[ring]") {
  const unsigned seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  Ends ends;
  std::vector<char> text(2 * kCapacity, 'x');
  for (int i = 0; i < 1000; ++i) {
    const uint64_t nearby = ends.ring.header.written + random() % (4 * kCapacity) - 2 * kCapacity;
    (random() % 2 == 0 ? ends.ring.header.written : ends.ring.header.consumed) =
        random() % 4 == 0 ? random() : nearby;
    const size_t length = random() % text.size();
    const auto moved = random() % 2 == 0 ? ends.writer.write(text.data(), length)
                                         : ends.reader.read(text.data(), length);
    if (moved.has_value() && *moved > length) {
      FAIL("moved more than was asked for");
    }
  }
  CHECK(ends.ring.isMarginUntouched());
}

TEST_CASE("indices that change all the time do not lead an end astray", "[ring]") {
  Ends ends;
  std::atomic<bool> over{false};
  std::thread liar([&] {
    for (std::mt19937_64 random(1); !over;) {
      const uint64_t lie = random() % 4 == 0 ? random() : random() % (4 * kCapacity);
      (random() % 2 == 0 ? ends.ring.header.written : ends.ring.header.consumed) = lie;
    }
  });
  std::vector<char> text(2 * kCapacity, 'x');
  bool tooMuch = false;
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    const size_t length = random() % text.size();
    tooMuch = tooMuch || ends.writer.write(text.data(), length).value_or(0) > length ||
        ends.reader.read(text.data(), length).value_or(0) > length;
  }
  over = true;
  liar.join();
  CHECK_FALSE(tooMuch);
  CHECK(ends.ring.isMarginUntouched());
}
