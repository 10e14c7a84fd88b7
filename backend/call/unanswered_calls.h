// Calls whose answer may still come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>

namespace torchwire {

/// The newest calls that have ended otherwise than by their answer. Not thread-safe.
class UnansweredCalls {
 public:
  static constexpr size_t kMost = 4096;

  void add(uint64_t id) {
    ids_.insert(id);
    order_.push_back(id);
    if (order_.size() > kMost) {
      ids_.erase(order_.front());
      order_.pop_front();
    }
  }
  /// Whether the call is among them, and is not from now on.
  bool take(uint64_t id) {
    return ids_.erase(id) != 0;
  }

 private:
  std::unordered_set<uint64_t> ids_;
  std::deque<uint64_t> order_; // the oldest first; also those that have been taken
};

} // namespace torchwire
