// Which calls that this worker serves their callers have given up.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <set>
#include <utility>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Remembers the latest calls that were cancelled, until they have been answered. One that was answered just before its
/// cancellation came stays until others take its place. Where nothing has been cancelled, nothing takes a lock.
/// Thread-safe.
class CancelledCalls {
 public:
  /// `memory`: how many calls are remembered.
  explicit CancelledCalls(size_t memory = 1024) : memory_(memory) {}

  void add(WorkerId caller, uint64_t callId) EXCLUDES(mutex_);

  bool contains(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_) {
    return any_.load(std::memory_order_relaxed) && find(caller, callId);
  }

  /// The call has been answered.
  void ended(WorkerId caller, uint64_t callId) EXCLUDES(mutex_) {
    if (any_.load(std::memory_order_relaxed)) {
      remove(caller, callId);
    }
  }

  /// The caller is gone: who comes back under its rank counts its calls from 1.
  void forget(WorkerId caller) EXCLUDES(mutex_);

 private:
  using Key = std::pair<WorkerId, uint64_t>;

  bool find(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_);
  void remove(WorkerId caller, uint64_t callId) EXCLUDES(mutex_);

  const size_t memory_;
  std::atomic<bool> any_{false};
  mutable Mutex mutex_{LockRank::cancelledCalls};
  std::set<Key> calls_ GUARDED_BY(mutex_);
  std::deque<Key> inOrder_ GUARDED_BY(mutex_); // with some that have ended
};

} // namespace torchwire
