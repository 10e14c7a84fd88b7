// Records that nobody on the path can read, change, leave out, repeat or move: what a sealed connection consists of.
//
// A record is framed as TLS 1.3 does it (RFC 8446, 5.2), so that the kernel's TLS could take over:
//
//   0 type 23   1 version 3, 3   3 length of what follows (big-endian)   5 ciphertext of the bytes and of a 23   tag
//
// The header is authenticated too. The nonce is the direction's fixed one with the record's number in it. After 2^22
// records, 64 GiB of full ones, both sides go on with a new key that is made of the old one.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct evp_cipher_ctx_st; // libcrypto's
struct crypto_aead_aes256gcm_state_; // libsodium's

namespace torchwire {

/// As on the wire.
enum class RecordAlgorithm : uint8_t {
  none = 0, // the connection is not sealed
  aes256Gcm = 1,
  chaCha20Poly1305 = 2, // where one of the processors has no instructions for AES
};
/// For people: "AES-256-GCM".
const char* nameOf(RecordAlgorithm algorithm);

/// Whether this processor has instructions for AES and for GCM's multiplication.
bool hasAesInstructions();

/// Loads what seals and opens records, unless that has been done: the first records do so, too.
void loadRecordCiphers();

/// Of one direction of one connection. A value; wiped when it goes.
struct RecordKey {
  RecordAlgorithm algorithm;
  std::array<unsigned char, 32> key;
  std::array<unsigned char, 12> nonce;

  RecordKey(
      RecordAlgorithm its, const std::array<unsigned char, 32>& itsKey,
      const std::array<unsigned char, 12>& itsNonce)
      : algorithm(its), key(itsKey), nonce(itsNonce) {}
  RecordKey(const RecordKey&) = default;
  RecordKey& operator=(const RecordKey&) = default;
  ~RecordKey();
};

constexpr size_t kRecordHeader = 5; // bytes
constexpr size_t kMaxRecordContent = size_t{16} << 10; // bytes
constexpr size_t kRecordOverhead = kRecordHeader + 1 + 16; // bytes, beside the content
constexpr size_t kMaxRecord = kMaxRecordContent + kRecordOverhead;
// libsodium seals and opens so short a content faster than libcrypto, which takes longer to begin.
constexpr size_t kShortContent = 512; // bytes

constexpr uint64_t kRecordsOfAKey = uint64_t{1} << 22;

/// What sealing and opening have in common: a key, and the number of the next record. Not thread-safe.
class RecordCipher {
 public:
  RecordCipher(const RecordKey& key, bool seals, uint64_t recordsOfAKey);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

 protected:
  using Nonce = std::array<unsigned char, sizeof(RecordKey::nonce)>;

  Nonce nextNonce();
  void begin(const Nonce& nonce, const unsigned char* header);
  void update(const void* from, size_t length, unsigned char* into);
  /// For so long a content; null: libcrypto is to do it.
  const crypto_aead_aes256gcm_state_* forShort(size_t content) const {
    return content <= kShortContent ? forShort_.get() : nullptr;
  }
  evp_cipher_ctx_st* context() const {
    return context_.get();
  }

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
    void operator()(crypto_aead_aes256gcm_state_* state) const;
  };
  void setKey();
  void ratchet();

  RecordKey key_;
  const bool seals_;
  const uint64_t recordsOfAKey_;
  uint64_t number_ = 0; // of the next record
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::unique_ptr<crypto_aead_aes256gcm_state_, Free> forShort_; // none where it is not AES
};

/// How far what is to be sealed has been: it lies in parts. A value.
class ContentCursor {
 public:
  ContentCursor(const iovec* parts, size_t count);

  size_t left() const {
    return left_;
  }
  /// At most `atMost` bytes that lie together; then it is behind them.
  iovec next(size_t atMost);
  void skip(size_t bytes);
  void copy(size_t bytes, unsigned char* into);

 private:
  const iovec* part_;
  size_t offset_ = 0; // in it
  size_t left_ = 0; // in all
};

/// Not thread-safe.
class RecordSealer : private RecordCipher {
 public:
  explicit RecordSealer(const RecordKey& key, uint64_t recordsOfAKey = kRecordsOfAKey)
      : RecordCipher(key, true, recordsOfAKey) {}

  /// Seals the next `length` bytes, at most kMaxRecordContent, into `out`, which has room for kRecordOverhead more.
  /// Returns the size of the record.
  size_t seal(ContentCursor& content, size_t length, unsigned char* out);

 private:
  void sealShort(
      const Nonce& nonce, ContentCursor& content, size_t length, unsigned char* out,
      const crypto_aead_aes256gcm_state_& state);
  void sealLong(const Nonce& nonce, ContentCursor& content, size_t length, unsigned char* out);
};

/// Not thread-safe.
class RecordOpener : private RecordCipher {
 public:
  explicit RecordOpener(const RecordKey& key, uint64_t recordsOfAKey = kRecordsOfAKey)
      : RecordCipher(key, false, recordsOfAKey) {}

  /// How long the content is of the record that begins so, or nothing if no record does.
  static bool readHeader(std::span<const unsigned char> header, size_t& content);

  /// Opens a whole record into `into`, which has room for its content. False: it is not what the other side has sent
  /// next, and what is in `into` is 0.
  bool open(std::span<const unsigned char> record, void* into);

 private:
  bool openShort(
      const Nonce& nonce, std::span<const unsigned char> record, size_t content, void* into,
      const crypto_aead_aes256gcm_state_& state);
  bool openLong(
      const Nonce& nonce, std::span<const unsigned char> record, size_t content, void* into);
};

} // namespace torchwire
