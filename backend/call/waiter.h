// A thread that waits for a call, and ends it itself.
#pragma once

#include <atomic>
#include <condition_variable>

#include "backend/base/annotations.h"
#include "backend/base/driver.h"
#include "backend/base/task.h"

namespace torchwire {

/// Takes what is to be done at the end of a call from whoever learns of that end to the thread that waits for it: no
/// third thread has to be woken. Thread-safe.
class Waiter {
 public:
  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  /// Once; on any thread, also on a loop or in the midst of a send.
  void give(Task task) EXCLUDES(mutex_);

  /// Waits for the task, which is the caller's to run. Drives meanwhile where it can (`driver` may be null).
  Task await(Driver* driver) EXCLUDES(mutex_);

 private:
  std::atomic<bool> given_{false};
  std::atomic<Driver*> driver_{nullptr}; // while the thread drives
  Mutex mutex_{LockRank::waiter};
  std::condition_variable_any there_;
  Task task_ GUARDED_BY(mutex_);
};

} // namespace torchwire
