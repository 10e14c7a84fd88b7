// A thread that waits for a call, and ends it itself.
#pragma once

#include <atomic>
#include <functional>

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

  /// Once; on any thread, also on a loop or in the midst of a send. Takes no lock: who is woken has to wait for none.
  void give(Task task);

  /// Waits for the task, which is the caller's to run. Drives meanwhile where it can (`driver` may be null), and then sleeps
  /// in a BlockingScope. `look`, where there is one, is called on this thread from time to time while it sleeps, and when a
  /// signal has woken it.
  Task await(Driver* driver, const std::function<void()>& look = {});

 private:
  enum State : int { // bits
    given = 1, // the task is there; who has given it may still look at the driver
    released = 2, // nor that: the waiter may be gone
    looks = 4 // the thread sleeps in a way of its own, to look from time to time
  };

  void sleep(const std::function<void()>& look);

  std::atomic<int> state_{0}; // an int is what the system waits for (futex), without a lock
  std::atomic<Driver*> driver_{nullptr}; // while the thread drives
  Task task_; // from `given` on that of the thread that waits
};

} // namespace torchwire
