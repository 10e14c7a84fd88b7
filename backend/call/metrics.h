// Counters of one agent, in the form of PyTorch's get_metrics and get_debug_info.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "backend/base/annotations.h"
#include "backend/call/function_table.h"
#include "backend/call/trace_log.h"

namespace torchwire {

/// Calls of this worker from the moment they are made until the callbacks of their future have run:
/// a callback may make further calls, and shutdown must not take the moment in between for the end.
/// Thread-safe.
class ActiveCalls {
 public:
  struct Count {
    int64_t started;
    int64_t finished;
  };

  void start() EXCLUDES(mutex_);
  void finish() EXCLUDES(mutex_);
  Count count() const EXCLUDES(mutex_);
  int64_t active() const {
    const Count now = count();
    return now.started - now.finished;
  }
  /// Blocks until no call is active, at most for `patience`. Whether none is.
  bool waitForNone(std::chrono::milliseconds patience) const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_{LockRank::activeCalls};
  mutable std::condition_variable_any none_;
  Count count_ GUARDED_BY(mutex_){0, 0};
};

/// What is noted of each call, made and served. Shared by all who may end one, be it after the agent. Thread-safe.
struct CallMetrics {
  FunctionTable functions;
  TraceLog trace;
};

/// What the serving side counts, and the wait for Python's global interpreter lock. Thread-safe.
struct ServerMetrics {
  std::atomic<int64_t> active{0}; // requests that came and are not answered
  std::atomic<int64_t> activeAsync{0}; // of these, those whose handler returned and left a future
  std::atomic<int64_t> cancelled{0}; // requests that came and that their callers have given up
  std::atomic<int64_t> gilWaits{0};
  std::atomic<int64_t> gilWaitMicroseconds{0};
};

} // namespace torchwire
