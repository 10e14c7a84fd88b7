// A backward pass as its root sees it: from the start to the end on all workers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "autograd/pass/pass_network.h"
#include "autograd/pass/pass_table.h"
#include "backend/base/annotations.h"
#include "backend/base/error.h"

namespace torchwire {

/// Runs the pass, and decides what to do when it rests: it is done, or send functions still wait. Then, in smart mode,
/// it finds the exact set and lets the workers go on without the rest; in fast mode it waits for its time-out, as
/// PyTorch does, and says what for. If the pass fails anywhere, it ends it everywhere. Held by shared_ptr, which the
/// pass itself keeps while it runs. Thread-safe.
class RootPass : public std::enable_shared_from_this<RootPass> {
 public:
  /// Called once, when the pass is over on all workers that could be reached.
  using Done = std::function<void(const Error&)>;

  /// `timeout`: after how long a pass in fast mode gives up; 0: never.
  RootPass(
      std::shared_ptr<PassTable> table, PassNetwork& network, PassTable::Root root,
      std::chrono::milliseconds timeout, Done done);

  void start();

 private:
  using Clock = std::chrono::steady_clock;

  void onIdle(int64_t waiting) EXCLUDES(mutex_);
  void discover() EXCLUDES(mutex_);
  void resume(const std::vector<WorkerId>& workers);
  void waitForDeadline();
  void fail(const Error& error) EXCLUDES(mutex_);
  void failStuck() EXCLUDES(mutex_);
  void endEverywhere(const std::function<void(PassEnded)>& then);
  Error explain(const PassEnded& ended) const;
  bool decide() EXCLUDES(mutex_);

  const std::shared_ptr<PassTable> table_;
  PassNetwork& network_;
  const PassTable::Root root_;
  const std::chrono::milliseconds timeout_;
  const Done done_;
  const Clock::time_point started_ = Clock::now();

  Mutex mutex_{LockRank::rootPass};
  bool searched_ GUARDED_BY(mutex_) = false;
  bool decided_ GUARDED_BY(mutex_) = false; // how it ends
};

} // namespace torchwire
