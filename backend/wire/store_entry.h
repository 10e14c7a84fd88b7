// What a worker writes into the store, so that others know it for a member's: a value with a version and a proof.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/wire/group_key.h"

namespace torchwire {

/// A value.
struct StoreEntry {
  using Bytes = std::vector<uint8_t>;

  Bytes value;
  Bytes bytes; // all of it, as the store has it
  uint64_t version = 0; // counts what has been written under the key, by compare-and-set; else 0
  bool proven = false; // by the group's key, for this name

  /// The bytes for the store. The same value and version give the same.
  static Bytes prove(
      const GroupKey& key, const std::string& name, uint64_t version, const Bytes& value);
  /// Reads what the store holds under the name. Without a key, or where it is no entry, it is not proven.
  static StoreEntry read(const GroupKey* key, const std::string& name, const Bytes& bytes);
};

} // namespace torchwire
