// Calls whose answer may still come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "backend/wire/undo.h"

namespace torchwire {

/// The newest calls that have ended otherwise than by their answer, each with what takes its request back. Not thread-safe.
class UnansweredCalls {
 public:
  static constexpr size_t kMost = 4096;

  void add(uint64_t id, Undo undo) {
    calls_.emplace(id, std::move(undo));
    order_.push_back(id);
    if (order_.size() > kMost) {
      calls_.erase(order_.front());
      order_.pop_front();
    }
  }
  /// Takes the call out, if it is among them.
  std::optional<Undo> take(uint64_t id) {
    auto call = calls_.extract(id);
    return call ? std::optional(std::move(call.mapped())) : std::nullopt;
  }

 private:
  std::unordered_map<uint64_t, Undo> calls_;
  std::deque<uint64_t> order_; // the oldest first; also those that have been taken
};

} // namespace torchwire
