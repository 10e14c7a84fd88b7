// The order in which a lane sends.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "backend/base/bytes.h"

namespace torchwire::cuda {

/// The receiver's device takes tensors in the order in which the receiver has asked for them, but what asks for them may
/// overtake each other on the way. A value; not thread-safe.
class FetchOrder {
 public:
  /// The tensor `number` is the one that is to be sent in this place, counting from 1. Throws FormatError where the place is
  /// taken.
  void add(uint64_t sequence, uint64_t number) {
    if (sequence <= last_ || !waiting_.emplace(sequence, number).second) {
      throw FormatError("a lane is asked for two tensors in the same place");
    }
  }

  /// The tensor to be sent now; none until the next place is known.
  std::optional<uint64_t> next() {
    const auto first = waiting_.begin();
    if (first == waiting_.end() || first->first != last_ + 1) {
      return std::nullopt;
    }
    ++last_;
    const uint64_t number = first->second;
    waiting_.erase(first);
    return number;
  }

 private:
  uint64_t last_ = 0; // whose turn has come
  std::map<uint64_t, uint64_t> waiting_;
};

} // namespace torchwire::cuda
