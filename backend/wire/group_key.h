// What the workers of one group have in common and unknown peers have not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "backend/wire/hmac.h"

namespace torchwire {

/// The key of a group: derived from its secret and its id, so that two groups that share a secret (one
/// file for a whole cluster) still have different keys. Proofs are HMAC-SHA-256 by libsodium.
/// A value, wiped when it goes; thread-safe once made.
class GroupKey {
 public:
  /// A shorter secret could be guessed by whoever gets a worker to dial an address of theirs.
  static constexpr size_t kMinSecret = 16; // bytes
  /// A shorter one may be a password.
  static constexpr size_t kRandomSecret = 32; // bytes

  /// What stands for a secret of the workers' own: itself, or what a memory-hard function (Argon2id, 64 MiB, some 0.1 s)
  /// makes of it and of the group's id where it is shorter than kRandomSecret. Throws std::runtime_error when it is
  /// shorter than kMinSecret, or there is no memory.
  static std::string stretched(uint64_t groupId, const std::string& secret);

  /// Throws std::runtime_error when the secret is shorter than kMinSecret.
  GroupKey(uint64_t groupId, const std::string& secret);
  GroupKey(const GroupKey&) = default;
  GroupKey& operator=(const GroupKey&) = default;
  ~GroupKey();

  uint64_t groupId() const {
    return groupId_;
  }

  /// 8 hexadecimal digits by which people tell keys of a group apart. By them a guess can be checked, as by a proof: random
  /// secrets cannot be guessed, and passwords cost an Argon2id each.
  std::string label() const;

  /// The key of those who know this one and have all that in common.
  GroupKey derive(const char* purpose, std::span<const unsigned char> common) const;

  /// The proof that whoever plays `role` knows the key and has seen exactly this transcript.
  Proof prove(const char* role, std::span<const unsigned char> transcript) const;
  /// Takes the same time for every wrong proof.
  bool verify(
      const char* role, std::span<const unsigned char> transcript, const Proof& proof) const;

  /// 32 bytes from the system's generator, for the group whose options name no secret.
  static std::string drawSecret();

 private:
  GroupKey(uint64_t groupId, const Proof& key) : groupId_(groupId), key_(key) {}

  uint64_t groupId_;
  std::array<unsigned char, 32> key_;
};

} // namespace torchwire
