// What the workers of one group have in common and unknown peers have not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace torchwire {

using Proof = std::array<unsigned char, 32>;
using Nonce = std::array<unsigned char, 32>;

/// The key of a group: derived from its secret and its id, so that two groups that share a secret (one
/// file for a whole cluster) still have different keys. Proofs are HMAC-SHA-256 by libsodium.
/// A value; thread-safe once made.
class GroupKey {
 public:
  /// A shorter secret could be guessed from one recorded handshake.
  static constexpr size_t kMinSecret = 16; // bytes

  /// Throws std::runtime_error when the secret is shorter than kMinSecret.
  GroupKey(uint64_t groupId, const std::string& secret);

  uint64_t groupId() const {
    return groupId_;
  }

  /// The proof that whoever plays `role` knows the key and has seen exactly this transcript.
  Proof prove(const char* role, std::span<const unsigned char> transcript) const;
  /// Takes the same time for every wrong proof.
  bool verify(
      const char* role, std::span<const unsigned char> transcript, const Proof& proof) const;

  /// 32 bytes from the system's generator, for the group whose options name no secret.
  static std::string drawSecret();
  static Nonce drawNonce();

 private:
  uint64_t groupId_;
  std::array<unsigned char, 32> key_;
};

} // namespace torchwire
