#include "backend/wire/hmac.h"

#include <sodium.h>

#include <cstring>

namespace torchwire {

static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);

std::span<const unsigned char> labelBytes(const char* text) {
  return {reinterpret_cast<const unsigned char*>(text), std::strlen(text) + 1};
}

bool proofsAreEqual(const Proof& a, const Proof& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Proof hmac(
    std::span<const unsigned char> key,
    std::initializer_list<std::span<const unsigned char>> parts) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), key.size());
  for (const std::span<const unsigned char> part : parts) {
    crypto_auth_hmacsha256_update(&state, part.data(), part.size());
  }
  Proof out;
  crypto_auth_hmacsha256_final(&state, out.data());
  return out;
}

} // namespace torchwire
