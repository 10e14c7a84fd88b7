// One thread that runs small tasks at given times: deadlines of calls, dials and handshakes.
//
// Who is given a Timer asks it for the time, too: in a simulation it stands on a clock of its own, and has no thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "backend/base/annotations.h"
#include "backend/base/task.h"

namespace torchwire {

/// Runs tasks at or soon after their time, one after another on its own thread, which sleeps in
/// between. A task must be quick and must not block. Thread-safe.
class Timer {
 public:
  using Clock = std::chrono::steady_clock;

  Timer() = default;
  virtual ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// The time by which the tasks go.
  virtual Clock::time_point now() const {
    return Clock::now();
  }

  /// Runs `task` at `when`. After stop() the task is dropped.
  virtual void at(Clock::time_point when, Task task) EXCLUDES(mutex_);
  void after(Clock::duration delay, Task task) EXCLUDES(mutex_) {
    at(now() + delay, std::move(task));
  }

  /// Drops the tasks that have not run and ends the thread. Not to be called from a task.
  void stop() EXCLUDES(mutex_);

 private:
  void loop();

  Mutex mutex_{LockRank::timer};
  std::condition_variable_any wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_); // started by the first task
  std::multimap<Clock::time_point, Task> tasks_ GUARDED_BY(mutex_);
};

} // namespace torchwire
