// The time, and waiting for it to pass: an interface, so that a simulation need not wait.
#pragma once

#include <chrono>

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
  /// Returns when so much time has passed, or later.
  virtual void sleepFor(std::chrono::nanoseconds duration) = 0;
};

/// The system's steady clock. Thread-safe.
class SystemClock : public Clock {
 public:
  TimePoint now() override;
  void sleepFor(std::chrono::nanoseconds duration) override;
};

} // namespace torchwire
