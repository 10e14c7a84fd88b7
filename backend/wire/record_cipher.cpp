#include "backend/wire/record_cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sodium.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "backend/wire/hmac.h"

namespace torchwire {
namespace {

constexpr unsigned char kType = 23; // application data
constexpr unsigned char kVersion = 3;
constexpr size_t kTag = 16;
constexpr char kNextKey[] = "next record key"; // goes into the key, so that its spelling stays

void require(bool works) {
  if (!works) {
    throw std::runtime_error("libcrypto cannot encrypt here: it has no memory, or no such cipher");
  }
}

/// Never freed: threads may use them until the process has ended.
struct Ciphers {
  Ciphers() {
    require(sodium_init() >= 0); // before it says what this processor can do
    // Nothing of the host's configuration of OpenSSL is for this copy of it.
    require(
        OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) == 1);
    aes256Gcm = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
    chaCha20Poly1305 = EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr);
    require(aes256Gcm != nullptr && chaCha20Poly1305 != nullptr);
  }
  static const Ciphers& loaded() {
    static const Ciphers ciphers;
    return ciphers;
  }

  const EVP_CIPHER* aes256Gcm;
  const EVP_CIPHER* chaCha20Poly1305;
};

const EVP_CIPHER* cipherOf(RecordAlgorithm algorithm) {
  const Ciphers& ciphers = Ciphers::loaded();
  return algorithm == RecordAlgorithm::aes256Gcm ? ciphers.aes256Gcm : ciphers.chaCha20Poly1305;
}

} // namespace

void loadRecordCiphers() {
  Ciphers::loaded();
}

const char* nameOf(RecordAlgorithm algorithm) {
  switch (algorithm) {
    case RecordAlgorithm::none:
      return "none";
    case RecordAlgorithm::aes256Gcm:
      return "AES-256-GCM";
    case RecordAlgorithm::chaCha20Poly1305:
      return "ChaCha20-Poly1305";
  }
  return "unknown";
}

bool hasAesInstructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == (HWCAP_AES | HWCAP_PMULL);
#else
  return false;
#endif
}

RecordKey::~RecordKey() {
  sodium_memzero(key.data(), key.size());
}

void RecordCipher::Free::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);
}

void RecordCipher::Free::operator()(crypto_aead_aes256gcm_state_* state) const {
  sodium_memzero(state, sizeof *state);
  delete state;
}

RecordCipher::RecordCipher(const RecordKey& key, bool seals, uint64_t recordsOfAKey)
    : key_(key), seals_(seals), recordsOfAKey_(recordsOfAKey), context_(EVP_CIPHER_CTX_new()) {
  require(context_ != nullptr);
  loadRecordCiphers();
  if (key.algorithm == RecordAlgorithm::aes256Gcm && crypto_aead_aes256gcm_is_available() == 1) {
    forShort_.reset(new crypto_aead_aes256gcm_state);
  }
  setKey();
}

RecordCipher::~RecordCipher() = default;

void RecordCipher::setKey() {
  require(
      EVP_CipherInit_ex(
          context(), cipherOf(key_.algorithm), nullptr, key_.key.data(), nullptr, seals_ ? 1 : 0) ==
      1);
  if (forShort_) {
    crypto_aead_aes256gcm_beforenm(forShort_.get(), key_.key.data());
  }
}

void RecordCipher::ratchet() {
  Proof next = hmac(key_.key, {labelBytes(kNextKey)});
  std::copy_n(next.begin(), key_.key.size(), key_.key.begin());
  sodium_memzero(next.data(), next.size());
  setKey();
}

RecordCipher::Nonce RecordCipher::nextNonce() {
  if (number_ != 0 && number_ % recordsOfAKey_ == 0) {
    ratchet();
  }
  Nonce nonce = key_.nonce;
  for (size_t i = 0; i < sizeof number_; ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<unsigned char>(number_ >> (8 * i));
  }
  ++number_;
  return nonce;
}

void RecordCipher::begin(const Nonce& nonce, const unsigned char* header) {
  int length = 0;
  require(
      EVP_CipherInit_ex(context(), nullptr, nullptr, nullptr, nonce.data(), seals_ ? 1 : 0) == 1 &&
      EVP_CipherUpdate(context(), nullptr, &length, header, kRecordHeader) == 1);
}

void RecordCipher::update(const void* from, size_t length, unsigned char* into) {
  int done = 0;
  require(
      length == 0 ||
      EVP_CipherUpdate(
          context(), into, &done, static_cast<const unsigned char*>(from),
          static_cast<int>(length)) == 1);
}

ContentCursor::ContentCursor(const iovec* parts, size_t count) : part_(parts) {
  for (size_t i = 0; i < count; ++i) {
    left_ += parts[i].iov_len;
  }
}

iovec ContentCursor::next(size_t atMost) {
  while (offset_ == part_->iov_len) {
    ++part_;
    offset_ = 0;
  }
  const size_t length = std::min(atMost, part_->iov_len - offset_);
  const iovec piece{static_cast<char*>(part_->iov_base) + offset_, length};
  offset_ += length;
  left_ -= length;
  return piece;
}

void ContentCursor::skip(size_t bytes) {
  while (bytes > 0) {
    bytes -= next(bytes).iov_len;
  }
}

void ContentCursor::copy(size_t bytes, unsigned char* into) {
  while (bytes > 0) {
    const iovec piece = next(bytes);
    std::memcpy(into, piece.iov_base, piece.iov_len);
    into += piece.iov_len;
    bytes -= piece.iov_len;
  }
}

size_t RecordSealer::seal(ContentCursor& content, size_t length, unsigned char* out) {
  const size_t rest = length + 1 + kTag;
  const unsigned char header[kRecordHeader] = {
      kType, kVersion, kVersion, static_cast<unsigned char>(rest >> 8),
      static_cast<unsigned char>(rest)};
  std::copy(std::begin(header), std::end(header), out);
  const Nonce nonce = nextNonce();
  if (const auto* state = forShort(length)) {
    sealShort(nonce, content, length, out, *state);
  } else {
    sealLong(nonce, content, length, out);
  }
  return kRecordHeader + rest;
}

void RecordSealer::sealShort(
    const Nonce& nonce, ContentCursor& content, size_t length, unsigned char* out,
    const crypto_aead_aes256gcm_state_& state) {
  unsigned char* const inner = out + kRecordHeader;
  content.copy(length, inner);
  inner[length] = kType;
  crypto_aead_aes256gcm_encrypt_detached_afternm(
      inner, inner + length + 1, nullptr, inner, length + 1, out, kRecordHeader, nullptr,
      nonce.data(), &state);
}

void RecordSealer::sealLong(
    const Nonce& nonce, ContentCursor& content, size_t length, unsigned char* out) {
  begin(nonce, out);
  unsigned char* at = out + kRecordHeader;
  for (size_t left = length; left > 0;) {
    const iovec piece = content.next(left);
    update(piece.iov_base, piece.iov_len, at);
    at += piece.iov_len;
    left -= piece.iov_len;
  }
  update(&kType, 1, at);
  ++at;
  int done = 0;
  require(
      EVP_CipherFinal_ex(context(), at, &done) == 1 &&
      EVP_CIPHER_CTX_ctrl(context(), EVP_CTRL_AEAD_GET_TAG, kTag, at) == 1);
}

bool RecordOpener::readHeader(std::span<const unsigned char> header, size_t& content) {
  if (header.size() < kRecordHeader || header[0] != kType || header[1] != kVersion ||
      header[2] != kVersion) {
    return false;
  }
  const size_t rest = size_t{header[3]} << 8 | header[4];
  if (rest < 1 + 1 + kTag || rest > kMaxRecordContent + 1 + kTag) {
    return false;
  }
  content = rest - 1 - kTag;
  return true;
}

bool RecordOpener::open(std::span<const unsigned char> record, void* into) {
  size_t content = 0;
  if (!readHeader(record, content) || record.size() != content + kRecordOverhead) {
    return false;
  }
  const Nonce nonce = nextNonce();
  const auto* state = forShort(content);
  const bool isWhole = state != nullptr ? openShort(nonce, record, content, into, *state)
                                        : openLong(nonce, record, content, into);
  if (!isWhole) {
    sodium_memzero(into, content);
  }
  return isWhole;
}

bool RecordOpener::openShort(
    const Nonce& nonce, std::span<const unsigned char> record, size_t content, void* into,
    const crypto_aead_aes256gcm_state_& state) {
  std::array<unsigned char, kShortContent + 1> opened;
  const unsigned char* const from = record.data() + kRecordHeader;
  const bool isWhole = crypto_aead_aes256gcm_decrypt_detached_afternm(
                           opened.data(), nullptr, from, content + 1, from + content + 1,
                           record.data(), kRecordHeader, nonce.data(), &state) == 0 &&
      opened[content] == kType;
  std::memcpy(into, opened.data(), content);
  return isWhole;
}

bool RecordOpener::openLong(
    const Nonce& nonce, std::span<const unsigned char> record, size_t content, void* into) {
  begin(nonce, record.data());
  const unsigned char* from = record.data() + kRecordHeader;
  unsigned char type = 0;
  update(from, content, static_cast<unsigned char*>(into));
  update(from + content, 1, &type);
  std::array<unsigned char, kTag> tag;
  std::copy_n(from + content + 1, kTag, tag.begin());
  int done = 0;
  unsigned char none = 0;
  return EVP_CIPHER_CTX_ctrl(context(), EVP_CTRL_AEAD_SET_TAG, kTag, tag.data()) == 1 &&
      EVP_CipherFinal_ex(context(), &none, &done) == 1 && type == kType;
}

} // namespace torchwire
