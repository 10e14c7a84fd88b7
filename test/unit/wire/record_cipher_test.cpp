#include "backend/wire/record_cipher.h"

#include <sodium.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "test/unit/support/hex.h"

using namespace torchwire;

namespace {

using Record = std::vector<unsigned char>;

RecordKey someKey(RecordAlgorithm algorithm, unsigned char first = 1) {
  RecordKey key{algorithm, {}, {}};
  std::iota(key.key.begin(), key.key.end(), first);
  std::iota(key.nonce.begin(), key.nonce.end(), static_cast<unsigned char>(first + 100));
  return key;
}

std::string patterned(size_t length) {
  std::string text(length, '\0');
  for (size_t i = 0; i < length; ++i) {
    text[i] = static_cast<char>(i * 7 + i / 251);
  }
  return text;
}

/// `piece`: the bytes lie in parts of that size.
Record seal(RecordSealer& sealer, std::string content, size_t piece = SIZE_MAX) {
  std::vector<iovec> parts;
  for (size_t at = 0; at < content.size(); at += std::min(piece, content.size() - at)) {
    parts.push_back({content.data() + at, std::min(piece, content.size() - at)});
  }
  ContentCursor cursor(parts.data(), parts.size());
  Record record(content.size() + kRecordOverhead);
  CHECK(sealer.seal(cursor, content.size(), record.data()) == record.size());
  CHECK(cursor.left() == 0);
  return record;
}

std::optional<std::string> open(RecordOpener& opener, const Record& record) {
  std::string content(record.size() - std::min(record.size(), kRecordOverhead), '\0');
  return opener.open(record, content.data()) ? std::optional(content) : std::nullopt;
}

auto algorithms() {
  return GENERATE(RecordAlgorithm::aes256Gcm, RecordAlgorithm::chaCha20Poly1305);
}

} // namespace

// Computed with Node's crypto; with a new key, hmac-sha-256(key, b"next record key\0"), from the third record on.
TEST_CASE("records are what Node seals, too", "[record_cipher]") {
  const auto [algorithm, records] = GENERATE(
      table<RecordAlgorithm, std::vector<std::string>>(
          {{RecordAlgorithm::aes256Gcm,
            {"170303001d310d3d8b3cee9e8b29107ad2ea9ac46790076b064f75348727642610c0",
             "170303001df63690751921e8823655a68d06ab8cb8a5a627560bbdcad5a6d311e676",
             "170303001d718b2308870cb4e619cc83d19549301330b2879d75381da934c3ac208e"}},
           {RecordAlgorithm::chaCha20Poly1305,
            {"170303001dd3cbf242829a1582fa97b7f15e1c9997b5c77090a8008c326e6254d02a",
             "170303001d33674e891357756960d6eeb5a98473b8e7db87c8e05c64cc2bd5a811e6",
             "170303001d1e8051b78b658506ab89711ac08999cb0b494895fa47b82073d7c81ad8"}}}));
  RecordSealer sealer(someKey(algorithm), /* recordsOfAKey */ 2);
  for (const std::string& record : records) {
    CHECK(hex(seal(sealer, "what is said")) == record);
  }
}

TEST_CASE("a record is opened as it was sealed, however its content lay", "[record_cipher]") {
  const RecordKey key = someKey(algorithms());
  RecordSealer sealer(key);
  RecordOpener opener(key);
  for (const size_t length :
       {size_t{1}, size_t{15}, size_t{16}, kShortContent, kShortContent + 1, size_t{5000},
        kMaxRecordContent}) {
    for (const size_t piece : {size_t{1}, size_t{13}, size_t{4096}, SIZE_MAX}) {
      CAPTURE(length, piece);
      REQUIRE(open(opener, seal(sealer, patterned(length), piece)) == patterned(length));
    }
  }
}

TEST_CASE("a header says how long its record is", "[record_cipher]") {
  RecordSealer sealer(someKey(algorithms()));
  for (const size_t length : {size_t{1}, size_t{300}, kMaxRecordContent}) {
    size_t content = 0;
    const Record record = seal(sealer, patterned(length));
    REQUIRE(RecordOpener::readHeader(record, content));
    CHECK(content == length);
  }
  size_t content = 0;
  CHECK_FALSE(RecordOpener::readHeader(Record{23, 3, 3, 0}, content)); // too short
  CHECK_FALSE(RecordOpener::readHeader(Record{22, 3, 3, 1, 0}, content));
  CHECK_FALSE(RecordOpener::readHeader(Record{23, 3, 1, 1, 0}, content));
  CHECK_FALSE(RecordOpener::readHeader(Record{23, 3, 3, 0, 17}, content)); // of no content
  CHECK_FALSE(RecordOpener::readHeader(Record{23, 3, 3, 0x40, 0x12}, content));
  CHECK(RecordOpener::readHeader(Record{23, 3, 3, 0x40, 0x11}, content));
}

// libsodium itself opens what is sealed by it and by libcrypto.
TEST_CASE("another implementation opens the first records", "[record_cipher]") {
  const RecordKey key = someKey(algorithms());
  loadRecordCiphers();
  if (key.algorithm == RecordAlgorithm::aes256Gcm && crypto_aead_aes256gcm_is_available() == 0) {
#if defined(__x86_64__)
    REQUIRE_FALSE((hasAesInstructions() && __builtin_cpu_supports("avx")));
#endif
    return;
  }
  RecordSealer sealer(key);
  const std::string contents[] = {
      "what is said", patterned(kShortContent), patterned(kShortContent + 1), patterned(5000),
      "more"};
  unsigned char number = 0;
  for (const std::string& content : contents) {
    const Record record = seal(sealer, content);
    auto nonce = key.nonce;
    nonce.back() ^= number++;
    std::string opened(content.size() + 1, '\0');
    unsigned long long length = 0;
    const auto decrypt = key.algorithm == RecordAlgorithm::aes256Gcm
        ? crypto_aead_aes256gcm_decrypt
        : crypto_aead_chacha20poly1305_ietf_decrypt;
    REQUIRE(
        decrypt(
            reinterpret_cast<unsigned char*>(opened.data()), &length, nullptr,
            record.data() + kRecordHeader, record.size() - kRecordHeader, record.data(),
            kRecordHeader, nonce.data(), key.key.data()) == 0);
    CHECK(opened == content + "\x17");
  }
}

TEST_CASE("a record with one bit changed does not open", "[record_cipher]") {
  const RecordKey key = someKey(algorithms());
  RecordSealer sealer(key);
  const Record record = seal(sealer, "what is said");
  for (size_t bit = 0; bit < 8 * record.size(); ++bit) {
    Record changed = record;
    changed[bit / 8] = static_cast<unsigned char>(changed[bit / 8] ^ (1 << bit % 8));
    RecordOpener opener(key);
    if (open(opener, changed)) {
      FAIL("bit " << bit);
    }
  }
  for (size_t size = 0; size < record.size(); ++size) {
    RecordOpener opener(key);
    REQUIRE_FALSE(open(opener, Record(record.begin(), record.begin() + static_cast<int>(size))));
  }
}

TEST_CASE("records open in their order alone, each once", "[record_cipher]") {
  const RecordKey key = someKey(algorithms());
  RecordSealer sealer(key);
  const Record first = seal(sealer, "first"), second = seal(sealer, "second");
  SECTION("left out, or swapped") {
    RecordOpener opener(key);
    CHECK_FALSE(open(opener, second));
  }
  SECTION("repeated") {
    RecordOpener opener(key);
    CHECK(open(opener, first) == "first");
    CHECK_FALSE(open(opener, first));
  }
  SECTION("of another key, or direction") {
    RecordOpener opener(someKey(key.algorithm, 2));
    CHECK_FALSE(open(opener, first));
  }
}

TEST_CASE("after some records both sides have another key", "[record_cipher]") {
  const RecordKey key = someKey(algorithms());
  constexpr uint64_t kRecords = 4;
  RecordSealer sealer(key, kRecords), without(key);
  RecordOpener opener(key, kRecords), stays(key);
  for (uint64_t i = 0; i < 3 * kRecords; ++i) {
    CAPTURE(i);
    const Record record = seal(sealer, "what is said");
    const Record same = seal(without, "what is said");
    CHECK((record == same) == (i < kRecords));
    CHECK(open(opener, record) == "what is said");
    CHECK(open(stays, same) == "what is said");
  }
}
