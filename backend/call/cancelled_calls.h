// Which calls that this worker serves nobody waits for any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/task.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// What those who serve a call may know of its end. Shared by them; outlives the call. Thread-safe.
class Cancellation {
 public:
  /// Whether nobody waits for the call any more. Not told of one that has been answered.
  bool isRequested() const {
    return requested_.load();
  }

  /// Keeps the callback until that happens, for who hears of it to run. False, and it stays the caller's: it has happened.
  /// One of a call that has been answered is dropped.
  bool add(Task& callback) EXCLUDES(mutex_);

 private:
  friend class CancelledCalls;
  using Tasks = std::vector<Task>;

  Tasks request() EXCLUDES(mutex_);
  Tasks end() EXCLUDES(mutex_);

  std::atomic<bool> requested_{false};
  Mutex mutex_{LockRank::cancellation};
  bool ended_ GUARDED_BY(mutex_) = false;
  Tasks callbacks_ GUARDED_BY(mutex_);
};

/// Remembers the latest calls that were cancelled, until they have been answered. One that was answered just before its
/// cancellation came stays until others take its place. Where nothing has been cancelled and nobody has asked, nothing
/// takes a lock. Thread-safe.
class CancelledCalls {
 public:
  using Tasks = std::vector<Task>;

  /// `memory`: how many calls are remembered.
  explicit CancelledCalls(size_t memory = 1024) : memory_(memory) {}

  /// The caller has given the call up. Returns callbacks: what is the user's, to be run where it may block.
  [[nodiscard]] Tasks add(WorkerId caller, uint64_t callId) EXCLUDES(mutex_);

  bool contains(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_) {
    return any_.load(std::memory_order_relaxed) && find(caller, callId);
  }

  /// Of a call that has not been answered yet.
  std::shared_ptr<Cancellation> watch(WorkerId caller, uint64_t callId) EXCLUDES(mutex_);

  /// The call has been answered. Returns callbacks that do not run any more: what is the user's, to be dropped where it
  /// may block.
  [[nodiscard]] Tasks ended(WorkerId caller, uint64_t callId) EXCLUDES(mutex_) {
    return any_.load(std::memory_order_relaxed) ? remove(caller, callId) : Tasks();
  }

  /// The caller is gone: nobody waits for its calls, and who comes back under its rank counts its calls from 1. Returns
  /// callbacks, as add() does.
  [[nodiscard]] Tasks forget(WorkerId caller) EXCLUDES(mutex_);

 private:
  using Key = std::pair<WorkerId, uint64_t>;

  bool find(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_);
  Tasks remove(WorkerId caller, uint64_t callId) EXCLUDES(mutex_);
  void noteWhetherAny() REQUIRES(mutex_);

  const size_t memory_;
  std::atomic<bool> any_{false};
  mutable Mutex mutex_{LockRank::cancelledCalls};
  std::set<Key> calls_ GUARDED_BY(mutex_);
  std::deque<Key> inOrder_ GUARDED_BY(mutex_); // with some that have ended
  std::map<Key, std::shared_ptr<Cancellation>> watched_ GUARDED_BY(mutex_);
};

} // namespace torchwire
