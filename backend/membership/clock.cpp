#include "backend/membership/clock.h"

#include <algorithm>
#include <thread>

namespace torchwire {

Clock::TimePoint SystemClock::now() {
  return std::chrono::steady_clock::now();
}

void SystemClock::sleepFor(std::chrono::nanoseconds duration) {
  const TimePoint end = now() + duration;
  do {
    check_();
    std::this_thread::sleep_until(std::min(end, now() + kInterruptionInterval));
  } while (now() < end);
}

} // namespace torchwire
