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
  std::string drawnSecret; // empty: the workers have some of their own,
  std::vector<Proof> ownSecrets; // which these prove without telling them

  /// The credentials that `worker` proposes. `secrets` are its own, which it accepts; none if it has none.
  /// Throws std::runtime_error when one is too short.
  static GroupCredentials draw(const WorkerRecord& worker, const std::vector<std::string>& secrets);

  /// How a worker's secrets fit this group: the first, which it uses, has to be one that the group accepts. Throws
  /// std::runtime_error when one is too short.
  enum class Fit { right, missing, needless, otherFirst, wrong };
  struct Admission {
    Fit fit;
    std::vector<GroupKey> keys; // of all of the worker's secrets, in their order, where one fits
  };
  /// Takes some 0.1 s for a short secret.
  Admission admit(const std::vector<std::string>& secrets) const;

  /// Of secrets of the workers' own, in a group. Takes as long.
  static std::vector<GroupKey> keysOf(uint64_t groupId, const std::vector<std::string>& secrets);
  /// These, but of workers that now have those keys.
  GroupCredentials withKeys(const std::vector<GroupKey>& keys) const;

  /// Whether the group's workers have this key of a secret of their own.
  bool haveKey(const GroupKey& key) const;

  /// A sentence that says why `worker`, whose own secrets fit like that, cannot be in this group, or nothing.
  std::optional<std::string> objectionTo(const WorkerRecord& worker, Fit fit) const;

  std::vector<char> encode() const;
  /// Throws FormatError.
  static GroupCredentials decode(const std::vector<char>& bytes);
};

} // namespace torchwire
