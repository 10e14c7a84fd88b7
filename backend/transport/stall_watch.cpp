#include "backend/transport/stall_watch.h"

#include <utility>

namespace torchwire {
namespace {

// Within this time the loop looks at its sockets.
constexpr std::chrono::milliseconds kLastLook{100};

} // namespace

StallWatch::StallWatch(
    Loop& loop, std::chrono::milliseconds patience, std::function<void()> stalled)
    : patience_(patience), stalled_(std::move(stalled)), timer_(loop) {}

void StallWatch::observe(bool hasBegun, uint64_t arrived) {
  if (!hasBegun || !stalled_) {
    hasBegun_ = false;
    return;
  }
  if (!hasBegun_ || arrived != arrived_) {
    since_ = Clock::now();
  }
  hasBegun_ = true;
  arrived_ = arrived;
  if (!runs_) {
    start(patience_, /* isLastLook */ false);
  }
}

void StallWatch::start(Clock::duration after, bool isLastLook) {
  runs_ = true;
  timer_.start(std::chrono::ceil<std::chrono::milliseconds>(after), [this, isLastLook] {
    onTimer(isLastLook);
  });
}

/// This process may have stood still for as long: then its timers are due before the loop has looked at its sockets.
void StallWatch::onTimer(bool isLastLook) {
  runs_ = false;
  if (!hasBegun_) {
    return;
  }
  const auto left = patience_ - (Clock::now() - since_);
  if (left > Clock::duration::zero()) {
    start(left, /* isLastLook */ false);
  } else if (!isLastLook) {
    start(kLastLook, /* isLastLook */ true);
  } else {
    const std::function<void()> stalled = std::exchange(stalled_, nullptr);
    hasBegun_ = false;
    stalled();
  }
}

} // namespace torchwire
