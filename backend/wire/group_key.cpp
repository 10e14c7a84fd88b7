#include "backend/wire/group_key.h"

#include <sodium.h>

#include <cstring>
#include <stdexcept>

namespace torchwire {
namespace {

// Bound to what it is for: a secret that serves elsewhere too gives another key there.
constexpr char kPurpose[] = "torchwire transport 2";
constexpr char kPassword[] = "torchwire password";
constexpr char kLabel[] = "torchwire label";

void startSodium() {
  if (sodium_init() < 0) {
    throw std::runtime_error("libsodium cannot get random numbers from this system");
  }
}

using Bytes = std::span<const unsigned char>;

void requireLength(const std::string& secret) {
  if (secret.size() < GroupKey::kMinSecret) {
    throw std::runtime_error(
        "the group secret has " + std::to_string(secret.size()) + " bytes; give at least " +
        std::to_string(GroupKey::kMinSecret));
  }
}

/// Of the id, for a purpose.
Proof boundTo(Bytes key, const char* purpose, uint64_t groupId) {
  unsigned char id[sizeof groupId];
  std::memcpy(id, &groupId, sizeof id);
  return hmac(key, {labelBytes(purpose), id});
}

} // namespace

GroupKey::GroupKey(uint64_t groupId, const std::string& secret) : groupId_(groupId) {
  startSodium();
  requireLength(secret);
  key_ = boundTo(
      {reinterpret_cast<const unsigned char*>(secret.data()), secret.size()}, kPurpose, groupId);
}

GroupKey::~GroupKey() {
  sodium_memzero(key_.data(), key_.size());
}

std::string GroupKey::stretched(uint64_t groupId, const std::string& secret) {
  startSodium();
  requireLength(secret);
  if (secret.size() >= kRandomSecret) {
    return secret;
  }
  constexpr unsigned char kNoKey[1] = {0};
  const Proof salt = boundTo(kNoKey, kPassword, groupId);
  static_assert(sizeof salt >= crypto_pwhash_SALTBYTES);
  std::string stretched(kRandomSecret, '\0');
  if (crypto_pwhash(
          reinterpret_cast<unsigned char*>(stretched.data()), stretched.size(), secret.data(),
          secret.size(), salt.data(), crypto_pwhash_OPSLIMIT_INTERACTIVE,
          crypto_pwhash_MEMLIMIT_INTERACTIVE, crypto_pwhash_ALG_ARGON2ID13) != 0) {
    throw std::runtime_error(
        "there is no memory (64 MiB for a moment) to make a key of a short group secret: use one "
        "of 32 random bytes or more, which needs none");
  }
  return stretched;
}

std::string GroupKey::label() const {
  const Proof of = hmac(key_, {labelBytes(kLabel)});
  constexpr size_t kBytes = 4;
  char digits[2 * kBytes + 1];
  return sodium_bin2hex(digits, sizeof digits, of.data(), kBytes);
}

GroupKey GroupKey::derive(const char* purpose, Bytes common) const {
  return {groupId_, prove(purpose, common)};
}

Proof GroupKey::prove(const char* role, Bytes transcript) const {
  return hmac(key_, {labelBytes(role), transcript});
}

bool GroupKey::verify(const char* role, Bytes transcript, const Proof& proof) const {
  return proofsAreEqual(prove(role, transcript), proof);
}

std::string GroupKey::drawSecret() {
  startSodium();
  std::string secret(sizeof(key_), '\0');
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

} // namespace torchwire
