// What the fuzz targets have in common.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>
#include <sodium.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/base/bytes.h"

namespace torchwire {

/// What a target does is told by the fuzzer's bytes: a target takes decisions, sizes and contents off them.
using Script = FuzzedDataProvider;

/// For a target's secrets and random numbers. A fuzzer learns from comparisons what other inputs were sealed as, which would
/// open under a constant secret.
using Digest = std::array<unsigned char, crypto_hash_sha256_BYTES>;
inline Digest digestOf(const uint8_t* input, size_t size) {
  Digest digest;
  crypto_hash_sha256(digest.data(), input, size);
  return digest;
}

/// What must hold whatever the bytes are. libFuzzer takes the end of the process for a finding.
inline void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
  }
}

/// Bytes are a message, or FormatError says that they are none. A message stays the same when it is encoded and decoded.
template <typename Decode, typename Encode>
void readAndWrite(const std::vector<char>& bytes, Decode decode, Encode encode) {
  std::vector<char> once;
  try {
    once = encode(decode(bytes));
  } catch (const FormatError&) { // not such a message
    return;
  }
  require(encode(decode(once)) == once, "a message that was decoded is the same");
  require(once.size() <= bytes.size(), "a message is made of what came");
}

} // namespace torchwire
