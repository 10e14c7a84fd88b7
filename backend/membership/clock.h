// The time, and waiting for it to pass: an interface, so that a simulation need not wait.
#pragma once

#include <chrono>
#include <utility>

#include "backend/base/interruption.h"

namespace torchwire {

/// Thread-safe.
class Clock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Clock() = default;
  virtual ~Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// Never goes back.
  virtual TimePoint now() = 0;
  /// Returns when so much time has passed, or later. May throw Interrupted.
  virtual void sleepFor(std::chrono::nanoseconds duration) = 0;
};

/// The system's steady clock, which makes the check whenever a thread sleeps. Thread-safe.
class SystemClock : public Clock {
 public:
  explicit SystemClock(InterruptionCheck check = [] {}) : check_(std::move(check)) {}

  TimePoint now() override;
  void sleepFor(std::chrono::nanoseconds duration) override;

 private:
  const InterruptionCheck check_;
};

} // namespace torchwire
