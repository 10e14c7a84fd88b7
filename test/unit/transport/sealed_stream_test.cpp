#include "backend/transport/sealed_stream.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <string>

#include "test/unit/support/impatient_stream.h"
#include "test/unit/support/memory_stream.h"
#include "test/unit/support/on_loop.h"

using namespace torchwire;

namespace {

RecordKey keyOf(unsigned char first) {
  RecordKey key{RecordAlgorithm::aes256Gcm, {}, {}};
  std::iota(key.key.begin(), key.key.end(), first);
  std::iota(key.nonce.begin(), key.nonce.end(), static_cast<unsigned char>(first + 100));
  return key;
}

std::string patterned(size_t length, unsigned seed) {
  std::string text(length, '\0');
  for (size_t i = 0; i < length; ++i) {
    text[i] = static_cast<char>((i + seed) * 7 + i / 251);
  }
  return text;
}

std::string sealedBy(RecordSealer& sealer, std::string content) {
  const iovec part{content.data(), content.size()};
  ContentCursor cursor(&part, 1);
  std::string record(content.size() + kRecordOverhead, '\0');
  sealer.seal(cursor, content.size(), reinterpret_cast<unsigned char*>(record.data()));
  return record;
}

/// Reads what there is, in pieces of that size, and keeps the error.
std::string readFrom(Stream& stream, size_t piece, std::string& error) {
  std::string all, into(piece, '\0');
  for (;;) {
    const Progress progress = stream.read(into.data(), into.size());
    all.append(into, 0, progress.bytes);
    if (progress.bytes == 0) {
      error = progress.error;
      return all;
    }
  }
}

} // namespace

TEST_CASE("both ends of sealed streams read what the other has written", "[sealed_stream]") {
  const RecordAlgorithm algorithm =
      GENERATE(RecordAlgorithm::aes256Gcm, RecordAlgorithm::chaCha20Poly1305);
  const size_t capacity = GENERATE(size_t{100}, size_t{70'000}, size_t{10'000'000});
  const size_t piece = GENERATE(size_t{1000}, size_t{40'000}, size_t{3'000'000});
  RecordKey there = {algorithm, {1}, {2}}, back = {algorithm, {3}, {4}};
  const auto loop = Loop::start("sealed");
  const auto wire = MemoryWire::make(capacity);
  const std::string said = patterned(std::min(300 * capacity, size_t{300'000}), 1);
  std::string heard;
  onLoop(*loop, [&] {
    SealedStream a(*loop, wire->stream(*loop, 0), there, back);
    SealedStream b(*loop, wire->stream(*loop, 1), back, there);
    size_t written = 0, offered = 0;
    std::string error;
    while (heard.size() < said.size() && error.empty()) {
      // In two parts; what has not been taken is offered again, and more behind it.
      const size_t most = std::min(said.size() - written, piece + offered);
      offered += 100;
      char* from = const_cast<char*>(said.data()) + written;
      const iovec parts[] = {{from, most / 3}, {from + most / 3, most - most / 3}};
      const Progress progress = a.write(parts, 2);
      REQUIRE(progress.error.empty());
      written += progress.bytes;
      heard += readFrom(b, piece, error);
    }
    CHECK(error.empty());
  });
  CHECK(heard == said);
}

TEST_CASE("what is on the wire shows nothing of what is said", "[sealed_stream]") {
  const auto loop = Loop::start("sealed");
  const auto wire = MemoryWire::make(1 << 20, 0);
  const std::string said(1000, 'x');
  onLoop(*loop, [&] {
    SealedStream stream(
        *loop, wire->stream(*loop, 0), {RecordAlgorithm::aes256Gcm, {1}, {2}},
        {RecordAlgorithm::aes256Gcm, {3}, {4}});
    const iovec part{const_cast<char*>(said.data()), said.size()};
    CHECK(stream.write(&part, 1).bytes == said.size());
  });
  const std::string sealed = wire->take(1);
  CHECK(sealed.size() == said.size() + kRecordOverhead);
  CHECK(sealed.find("xxxx") == std::string::npos);
}

TEST_CASE("of what was changed on the way nothing is read", "[sealed_stream]") {
  const RecordKey key = keyOf(1);
  RecordSealer sealer(key);
  const std::string first = sealedBy(sealer, "first"), second = sealedBy(sealer, "second");
  std::string third = sealedBy(sealer, "third");
  std::string arrives;
  SECTION("a bit") {
    third[kRecordHeader + 2] = static_cast<char>(third[kRecordHeader + 2] ^ 1);
    arrives = first + second + third;
  }
  SECTION("a record of no sense") {
    arrives = first + second + "what is this?";
  }
  SECTION("a record twice") {
    arrives = first + second + second;
  }
  SECTION("bytes in between") {
    arrives = first + second + 'x' + third;
  }
  const auto loop = Loop::start("sealed");
  const auto wire = MemoryWire::make(1 << 20, 0);
  wire->put(0, arrives);
  onLoop(*loop, [&] {
    SealedStream stream(*loop, wire->stream(*loop, 1), keyOf(2), key);
    std::string error;
    CHECK(readFrom(stream, 4, error) == "firstsecond");
    CHECK_THAT(error, Catch::Contains("it was changed on the way"));
    CHECK(readFrom(stream, 4, error).empty()); // nor afterwards
    CHECK_FALSE(error.empty());
  });
}

TEST_CASE("the end of the stream is told once all before it has been read", "[sealed_stream]") {
  const RecordKey key = keyOf(1);
  RecordSealer sealer(key);
  const auto loop = Loop::start("sealed");
  const auto wire = MemoryWire::make(1 << 20, 0);
  wire->put(0, sealedBy(sealer, "the last"));
  wire->leave(0);
  onLoop(*loop, [&] {
    SealedStream stream(*loop, wire->stream(*loop, 1), keyOf(2), key);
    std::string error;
    CHECK(readFrom(stream, 3, error) == "the last");
    CHECK(error == "the other end has left");
  });
}

TEST_CASE(
    "what there is of a record that has begun is held back, and no whole one", "[sealed_stream]") {
  const RecordKey key = keyOf(1);
  RecordSealer sealer(key);
  const std::string first = sealedBy(sealer, "first"), second = sealedBy(sealer, "second");
  const size_t cut = GENERATE(size_t{1}, kRecordHeader, kRecordHeader + 1, size_t{20});
  const auto loop = Loop::start("sealed");
  const auto wire = MemoryWire::make(1 << 20, 0);
  wire->put(0, first + second.substr(0, cut));
  onLoop(*loop, [&] {
    SealedStream stream(*loop, wire->stream(*loop, 1), keyOf(2), key);
    CHECK(stream.heldBack() == 0); // it has not looked yet
    std::string error, heard(3, ' ');
    CHECK(stream.read(heard.data(), heard.size()).bytes == heard.size());
    CHECK(readFrom(stream, 100, error) == "st");
    CHECK(stream.heldBack() == cut);
    wire->put(0, second.substr(cut));
    CHECK(readFrom(stream, 100, error) == "second");
    CHECK(stream.heldBack() == 0);
    wire->put(0, sealedBy(sealer, "third")); // one after the other, as they are numbered
    wire->put(0, sealedBy(sealer, "fourth"));
    CHECK(stream.read(heard.data(), heard.size()).bytes == heard.size());
    CHECK(stream.heldBack() == 0); // the fourth waits for its reader
    CHECK(error.empty());
  });
}

TEST_CASE(
    "what comes from the peer is counted, and its stream's patience kept", "[sealed_stream]") {
  const RecordKey key = keyOf(1);
  RecordSealer sealer(key);
  const std::string record = sealedBy(sealer, "the first");
  const auto loop = Loop::start("sealed");
  const auto wire = MemoryWire::make(1 << 20, 0);
  const auto arrivals = std::make_shared<SealedPeers::Arrivals>(7);
  wire->put(0, record + record.substr(0, 10));
  onLoop(*loop, [&] {
    const std::chrono::milliseconds patience(20);
    SealedStream stream(
        *loop, std::make_unique<ImpatientStream>(wire->stream(*loop, 1), patience), keyOf(2), key,
        arrivals);
    std::string error;
    readFrom(stream, 100, error);
    CHECK(stream.stallPatience() == patience);
  });
  CHECK(*arrivals == 7 + record.size() + 10);
}
