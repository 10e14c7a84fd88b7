// How a worker leaves its group: with the others, where that is of a fixed size, or alone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "backend/base/interruption.h"
#include "backend/call/metrics.h"
#include "backend/link/shutdown_monitor.h"
#include "backend/membership/membership.h"
#include "backend/node/node.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Every wait throws std::runtime_error with a sentence that names the worker that it is in vain for, or says that `timeout`
/// (0: none) is over, and what the interruption check throws. In a static group, the others then throw the same sentence, or
/// one that says that this worker has been interrupted. On threads that may block; used by one at a time, but for what says
/// otherwise.
class GroupEnd {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// What belongs to the worker, and outlives this.
  struct Worker {
    Node& node; // open
    Membership& membership;
    const ActiveCalls& calls;
    InterruptionCheck checkInterruption;
  };
  explicit GroupEnd(Worker worker) : worker_(std::move(worker)) {}
  GroupEnd(const GroupEnd&) = delete;
  GroupEnd& operator=(const GroupEnd&) = delete;

  /// A static group, as join() and awaitEndOfCalls(): returns once every worker has called this that is not dead. Adds up
  /// their numbers; the others hear of what `number` throws.
  int64_t meet(Milliseconds timeout, const std::function<int64_t()>& number);
  /// Returns when no call of any worker is active any more.
  void awaitEndOfCalls(Milliseconds timeout);
  /// The same, for the last time. `hosts`: others may depend on this worker for the store, and it waits until they do not.
  void join(Milliseconds timeout, bool hosts);
  /// A dynamic group: returns when no call of this worker is active any more, and the group has it no longer on its list.
  void leave(Milliseconds timeout);

  /// Whether join() has been called. On any thread.
  bool isJoining() const {
    return joining_;
  }

 private:
  Totals awaitEndOfCalls(const ShutdownMonitor& monitor);
  void awaitOwnCalls(const std::function<void()>& check) const;
  void checkOthers(const ShutdownMonitor& monitor) const;
  std::set<WorkerId> deadPeers() const;
  void warnOfLosses(const std::set<WorkerId>& missing) const;
  std::string describe(const std::set<WorkerId>& workers) const;

  const Worker worker_;
  std::atomic<bool> joining_{false};
  int rounds_ = 0; // of waits for all workers; counts alike on all of them
};

} // namespace torchwire
