// Ends a start that a daemon thread is in as the program ends.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "backend/base/interruption.h"
#include "backend/serve/signals.h"

namespace torchwire {

/// Of one start of an agent. Thread-safe.
class StartInterruption {
 public:
  /// While one lives, the agent starts. Throws Interrupted where it is not to start any more.
  class Scope {
   public:
    explicit Scope(StartInterruption& start) : start_(start) {
      start_.runs_ = true;
      if (start_.ends_) {
        start_.runs_ = false;
        throw Interrupted();
      }
    }
    ~Scope() {
      start_.runs_ = false;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StartInterruption& start_;
  };

  /// An InterruptionCheck, for all that the agent waits for.
  void check() {
    if (runs_ && ends_ &&
        !hasThrown_.exchange(true)) { // then the start tells the others, by the store
      throw Interrupted();
    }
    checkSignals();
  }

  /// Has the start end at its next check. Returns once it is over, or after so long.
  void interrupt(std::chrono::milliseconds patience) {
    ends_ = true;
    const auto end = std::chrono::steady_clock::now() + patience;
    while (runs_ && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(kLook);
    }
  }

 private:
  static constexpr std::chrono::milliseconds kLook{5};

  std::atomic<bool> runs_{false};
  std::atomic<bool> ends_{false};
  std::atomic<bool> hasThrown_{false};
};

} // namespace torchwire
