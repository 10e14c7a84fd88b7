// Calls that end on the threads which wait for them.
#pragma once

#include <atomic>

namespace torchwire {

/// Counts them, since nothing else waits for those threads. Thread-safe.
class WaiterEnds {
 public:
  /// While one lives, this thread waits for a call, or ends it.
  class Scope {
   public:
    Scope() {
      ++here_;
    }
    ~Scope() {
      --here_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  /// The thread that waits for a call is about to end it.
  void begin() {
    ++ending_;
  }
  /// It has.
  void end() {
    --ending_;
    ending_.notify_all();
  }
  /// Returns when no thread ends a call that it has waited for, but for this one: a handler of a signal, which runs in a wait,
  /// may shut the agent down.
  void waitForOthers() const {
    for (int ending = ending_; ending > here_; ending = ending_) {
      ending_.wait(ending);
    }
  }

 private:
  static inline thread_local int here_ = 0; // Scopes

  std::atomic<int> ending_{0};
};

} // namespace torchwire
