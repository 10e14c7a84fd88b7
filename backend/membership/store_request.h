// What one worker asks of the store that another one serves, and the answer.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/membership/key_value_store.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Which store the rounds of a shutdown are held in: at first the rendezvous store, then those that workers serve. Workers
/// only go on to later places, and those in one place wait for each other. A value.
struct StorePlace {
  uint32_t lap = 0; // of the workers in the order of their ranks
  WorkerId server = -1; // -1: the rendezvous store

  bool isPeer() const {
    return server >= 0;
  }
  auto operator<=>(const StorePlace&) const = default;
};

/// A value. Which of the fields an operation has is in docs/protocol.md.
struct StoreRequest {
  enum class Operation : uint8_t { compareSet, get, set, add, check, comeOver };

  Operation operation = Operation::check;
  StorePlace place;
  std::string key; // of comeOver: why
  KeyValueStore::Value expected, value;
  int64_t amount = 0;

  std::vector<char> encode() const;
  /// Throws FormatError.
  static StoreRequest decode(const std::vector<char>& bytes);
};

/// A value.
struct StoreAnswer {
  StorePlace place; // if it is later than that of the request, nothing was done
  KeyValueStore::Value value;
  int64_t number = 0; // a sum, or whether there is such a key

  std::vector<char> encode() const;
  /// Throws FormatError.
  static StoreAnswer decode(const std::vector<char>& bytes);
};

} // namespace torchwire
