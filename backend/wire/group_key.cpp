#include "backend/wire/group_key.h"

#include <sodium.h>

#include <cstring>
#include <stdexcept>
#include <vector>

namespace torchwire {
namespace {

static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);

// Bound to what it is for: a secret that serves elsewhere too gives another key there.
constexpr char kPurpose[] = "torchwire transport 1";

void startSodium() {
  if (sodium_init() < 0) {
    throw std::runtime_error("libsodium cannot get random numbers from this system");
  }
}

using Bytes = std::span<const unsigned char>;

Bytes bytesOf(const char* text) {
  return {
      reinterpret_cast<const unsigned char*>(text),
      std::strlen(text) + 1}; // with its end, as a separator
}

Proof hmac(Bytes key, std::initializer_list<Bytes> parts) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  for (const Bytes part : parts) {
    crypto_auth_hmacsha256_update(&state, part.data(), part.size());
  }
  Proof out;
  crypto_auth_hmacsha256_final(&state, out.data());
  return out;
}

} // namespace

GroupKey::GroupKey(uint64_t groupId, const std::string& secret) : groupId_(groupId) {
  startSodium();
  if (secret.size() < kMinSecret) {
    throw std::runtime_error(
        "the group secret has " + std::to_string(secret.size()) + " bytes; give at least " +
        std::to_string(kMinSecret));
  }
  unsigned char id[sizeof groupId];
  std::memcpy(id, &groupId, sizeof id);
  key_ = hmac(
      {reinterpret_cast<const unsigned char*>(secret.data()), secret.size()},
      {bytesOf(kPurpose), id});
}

Proof GroupKey::prove(const char* role, Bytes transcript) const {
  return hmac(key_, {bytesOf(role), transcript});
}

bool GroupKey::verify(const char* role, Bytes transcript, const Proof& proof) const {
  return sodium_memcmp(prove(role, transcript).data(), proof.data(), proof.size()) == 0;
}

std::string GroupKey::drawSecret() {
  startSodium();
  std::string secret(sizeof(key_), '\0');
  randombytes_buf(secret.data(), secret.size());
  return secret;
}

Nonce GroupKey::drawNonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

} // namespace torchwire
