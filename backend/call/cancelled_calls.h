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
  /// Whether nobody waits for the call any more. If it has been answered before that, it stays as it was.
  bool isRequested() const {
    return requested_.load();
  }

  /// Takes the callback, for CancelledCalls to return when that happens, unless the call has been answered. Where it has
  /// happened already: false, and the callback is to be run by who offers it.
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
/// cancellation came stays until others take its place. Where nothing has been cancelled and nobody watches a call, nothing
/// takes a lock. Thread-safe.
///
/// A caller that is lost and comes back may number its calls as it did before: so a call is known by the caller, its number
/// and the moment at which it came, which tells those that came before the caller was lost.
class CancelledCalls {
 public:
  using Tasks = std::vector<Task>;
  /// Counts the callers that were lost.
  using Moment = uint64_t;

  Moment now() const {
    return now_.load(std::memory_order_relaxed);
  }

  /// `memory`: how many calls are remembered.
  explicit CancelledCalls(size_t memory = 1024) : memory_(memory) {}

  /// The caller has given the call up. Returns callbacks: what is the user's, to be run where it may block.
  [[nodiscard]] Tasks add(WorkerId caller, uint64_t callId) EXCLUDES(mutex_);

  bool contains(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_) {
    return any_.load(std::memory_order_relaxed) && find(caller, callId);
  }

  /// Of a call that came at `arrival` and has not been answered yet.
  std::shared_ptr<Cancellation> watch(WorkerId caller, uint64_t callId, Moment arrival)
      EXCLUDES(mutex_);

  /// The call has been answered. Returns callbacks that do not run any more: what is the user's, to be dropped where it
  /// may block.
  [[nodiscard]] Tasks ended(WorkerId caller, uint64_t callId, Moment arrival) EXCLUDES(mutex_) {
    return any_.load(std::memory_order_relaxed) ? remove(caller, callId, arrival) : Tasks();
  }

  /// The caller is lost: nobody waits for the calls that have come until now. Returns callbacks, as add() does.
  [[nodiscard]] Tasks forget(WorkerId caller) EXCLUDES(mutex_);

  /// This worker shuts down, and answers nothing any more. Returns callbacks, as ended() does.
  [[nodiscard]] Tasks endAll() EXCLUDES(mutex_);

 private:
  using Key = std::pair<WorkerId, uint64_t>;

  bool find(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_);
  Tasks remove(WorkerId caller, uint64_t callId, Moment arrival) EXCLUDES(mutex_);
  bool wasLost(WorkerId caller, Moment since) const REQUIRES(mutex_);
  void noteWhetherAny() REQUIRES(mutex_);

  const size_t memory_;
  std::atomic<bool> any_{false};
  std::atomic<Moment> now_{0};
  mutable Mutex mutex_{LockRank::cancelledCalls};
  std::map<WorkerId, Moment> lost_ GUARDED_BY(mutex_); // when, the last time
  std::set<Key> calls_ GUARDED_BY(mutex_);
  std::deque<Key> inOrder_ GUARDED_BY(mutex_); // with some that have ended
  std::map<Key, std::shared_ptr<Cancellation>> watched_ GUARDED_BY(mutex_);
};

} // namespace torchwire
