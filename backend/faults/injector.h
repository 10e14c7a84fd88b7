// Decides on the faults of one worker, for all its links and channels.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/faults/fault_log.h"
#include "backend/faults/fault_schedule.h"
#include "backend/faults/mid_tensor.h"
#include "backend/faults/partitions.h"
#include "backend/faults/plan.h"
#include "backend/faults/process.h"
#include "backend/faults/request_notes.h"

namespace torchwire::faults {

/// Told when the plan has changed: what a partition held may go on.
class PlanWatcher {
 public:
  virtual ~PlanWatcher() = default;
  virtual void planChanged() = 0;
};

/// Says what happens to a message, writes it to the log, and does itself what hits the whole process; the rest
/// is the link's or the channel's. Calls out unlocked. Thread-safe. Held by shared_ptr.
class Injector {
 public:
  /// Throws std::invalid_argument for a plan that makes no sense, see objectionTo(Plan).
  Injector(
      std::string self, Plan plan, std::shared_ptr<FaultLog> log,
      std::shared_ptr<Process> process = thisProcess());

  /// See FaultInterceptor. Throws std::invalid_argument, and then the former plan stays.
  void setPlan(Plan plan) EXCLUDES(mutex_);
  /// While the watcher lives, it is told of each new plan.
  void watch(std::weak_ptr<PlanWatcher> watcher) EXCLUDES(mutex_);
  /// Waits until no setPlan() is telling them.
  void awaitWatchers() EXCLUDES(mutex_);

  /// Of the plan in effect.
  uint64_t revision() const EXCLUDES(mutex_);
  const std::string& self() const {
    return self_;
  }
  /// No rules: nothing is decided and nothing counted.
  bool quiet() const {
    return quiet_.load(std::memory_order_acquire);
  }
  /// Whether FaultPoint::content has to be filled in.
  bool readsContent() const {
    return readsContent_.load(std::memory_order_acquire);
  }

  /// What happens to this message, if anything. By then it has been logged, and a pause or a kill has taken
  /// place: neither is returned. Enters the occurrence.
  std::optional<Entry> decide(FaultPoint& at) EXCLUDES(mutex_);

  /// The two halves of decide(), for a fault that takes place later.
  std::optional<Entry> draw(FaultPoint& at) EXCLUDES(mutex_);
  void inject(Entry entry); // logs it with the present time; pauses or kills

  /// Whether frames to the peer are held now. Not logged.
  std::optional<Cut> cut(const std::string& peer) const EXCLUDES(mutex_);
  /// Logs that a request or a response is held.
  void logHeld(const Cut& cut, const FaultPoint& at);

  /// Kept whatever the plan, since the plan may change before the response goes.
  RequestNotes& requests() {
    return requests_;
  }
  const std::shared_ptr<MidTensor>& midTensor() const {
    return midTensor_;
  }

 private:
  const std::string self_;
  const std::shared_ptr<FaultLog> log_;
  const std::shared_ptr<Process> process_;
  const std::shared_ptr<MidTensor> midTensor_ = std::make_shared<MidTensor>();
  RequestNotes requests_;
  std::atomic<bool> quiet_{true};
  std::atomic<bool> readsContent_{false};

  mutable Mutex mutex_{LockRank::injector};
  std::condition_variable_any told_;
  int telling_ GUARDED_BY(mutex_) = 0; // threads
  uint64_t revision_ GUARDED_BY(mutex_) = 0;
  FaultSchedule schedule_ GUARDED_BY(mutex_);
  Partitions partitions_ GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<PlanWatcher>> watchers_ GUARDED_BY(mutex_);
};

} // namespace torchwire::faults
