#include "backend/membership/clock.h"

#include <thread>

namespace torchwire {

Clock::TimePoint SystemClock::now() {
  return std::chrono::steady_clock::now();
}

void SystemClock::sleepFor(std::chrono::nanoseconds duration) {
  std::this_thread::sleep_for(duration);
}

} // namespace torchwire
