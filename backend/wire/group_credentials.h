// What a group's workers have agreed on before the first link is opened: the group's id and secret.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/wire/group_key.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Drawn by the worker that comes first; the others find them in the store. Either the workers bring a
/// secret of their own, which never gets into the store, or they have none and share the one drawn here.
/// A value; not thread-safe.
struct GroupCredentials {
  uint64_t groupId = 0; // tells groups on one network apart
  std::string drawnBy; // WorkerRecord::describe(), for messages
  std::string drawnSecret; // empty: the workers have one of their own,
  Proof ownSecret{}; // which this proves without telling it

  /// The credentials that `worker` proposes. `secret` is its own, empty if it has none.
  /// Throws std::runtime_error when the secret is too short.
  static GroupCredentials draw(const WorkerRecord& worker, const std::string& secret);

  /// How a secret, empty for none, fits this group. Throws std::runtime_error when it is too short.
  enum class Fit { right, missing, needless, wrong };
  Fit fitOf(const std::string& secret) const;

  /// A sentence that says why `worker`, whose own secret is `secret` (empty: none), cannot be in this group,
  /// or nothing. Throws std::runtime_error when the secret is too short.
  std::optional<std::string> objectionTo(
      const WorkerRecord& worker, const std::string& secret) const;

  /// The key of a worker that these credentials admit.
  GroupKey key(const std::string& secret) const;

  std::vector<char> encode() const;
  /// Throws FormatError.
  static GroupCredentials decode(const std::vector<char>& bytes);
};

} // namespace torchwire
