// A timed task that says so when its time will not come.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "backend/base/timer.h"

namespace torchwire::faults {

/// Calls `then(true)` after so many seconds, or `then(false)` when the timer stops before: at once if it has
/// stopped. Exactly once, unlocked.
inline void setAlarm(Timer& timer, double seconds, std::function<void(bool inTime)> then) {
  class Alarm {
   public:
    explicit Alarm(std::function<void(bool)> t) : then_(std::move(t)) {}
    ~Alarm() { // the timer drops what it does not run
      ring(false);
    }
    Alarm(const Alarm&) = delete;
    Alarm& operator=(const Alarm&) = delete;

    void ring(bool inTime) {
      if (const auto t = std::exchange(then_, nullptr)) {
        t(inTime);
      }
    }

   private:
    std::function<void(bool)> then_;
  };

  constexpr double kMax = 1e8; // three years, which a time point can still be moved by
  const std::chrono::duration<double> delay(std::clamp(seconds, 0.0, kMax));
  timer.after(
      std::chrono::duration_cast<Timer::Clock::duration>(delay),
      [alarm = std::make_unique<Alarm>(std::move(then))] { alarm->ring(true); });
}

} // namespace torchwire::faults
