// What the two sides of one handshake know, and nobody else: not even who learns the group's secret later.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/wire/group_key.h"
#include "backend/wire/record_cipher.h"

namespace torchwire {

using PublicKey = std::array<unsigned char, 32>;

/// A key pair of X25519 that serves one handshake. A value; wiped when it goes.
class EphemeralKey {
 public:
  /// From the system's generator.
  EphemeralKey();
  /// Of a secret that others know, for tests.
  explicit EphemeralKey(const std::array<unsigned char, 32>& secret);
  EphemeralKey(const EphemeralKey&) = default;
  EphemeralKey& operator=(const EphemeralKey&) = default;
  ~EphemeralKey();

  const PublicKey& publicKey() const {
    return public_;
  }
  /// What both sides compute; nothing where `other` is one of the few points for which all would be the same.
  std::optional<std::array<unsigned char, 32>> agreeWith(const PublicKey& other) const;

 private:
  std::array<unsigned char, 32> secret_;
  PublicKey public_;
};

/// Derived from the group's key, from what both ephemeral keys agree on and from all that was said, as by HKDF (RFC 5869)
/// with the group's key as salt. A value; wiped when it goes; thread-safe once made.
class SessionKey {
 public:
  /// Nothing where the other side's ephemeral key must not be used.
  static std::optional<SessionKey> derive(
      const GroupKey& group, const EphemeralKey& own, const PublicKey& other,
      std::span<const unsigned char> transcript);
  /// One for each of the groups' keys; none where that must not be used.
  static std::vector<SessionKey> derive(
      const std::vector<GroupKey>& groups, const EphemeralKey& own, const PublicKey& other,
      std::span<const unsigned char> transcript);
  SessionKey(const SessionKey&) = default;
  SessionKey& operator=(const SessionKey&) = default;
  ~SessionKey();

  /// The proof that whoever plays `role` knows the key and says `words`.
  Proof prove(const char* role, std::span<const unsigned char> words) const;
  /// Takes the same time for every wrong proof.
  bool verify(const char* role, std::span<const unsigned char> words, const Proof& proof) const;
  /// For what `role` sends from now on.
  RecordKey recordKey(const char* role, RecordAlgorithm algorithm) const;

 private:
  explicit SessionKey(const Proof& key) : key_(key) {}

  Proof key_;
};

} // namespace torchwire
