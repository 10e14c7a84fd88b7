// When waiting should spin, and when it should sleep.
#pragma once

#include <algorithm>
#include <chrono>

namespace torchwire {

/// Remembers how far apart events come. Spinning pays only if the next event is likely to come before a
/// wake-up would have cost more, so: spin while events come closer together than the longest spin, for
/// about twice their usual distance; else sleep at once. Not thread-safe.
class SpinGate {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;

  explicit SpinGate(Duration maxSpin) : maxSpin_(maxSpin), usualGap_(2 * maxSpin) {}

  void noteEvent(Clock::time_point now) {
    // A pause counts as twice the longest spin, however long it was: a few quick events after it are
    // enough to spin again.
    const Duration gap = std::min<Duration>(now - lastEvent_, 2 * maxSpin_);
    usualGap_ += (gap - usualGap_) / kMemory;
    lastEvent_ = now;
  }

  bool shouldSpin(Clock::time_point now) const {
    return usualGap_ < maxSpin_ && now - lastEvent_ < std::min(maxSpin_, 2 * usualGap_ + kSlack);
  }

 private:
  static constexpr int kMemory = 4; // events that the usual gap is about an average of
  static constexpr Duration kSlack = std::chrono::microseconds(10);

  const Duration maxSpin_;
  Duration usualGap_;
  Clock::time_point lastEvent_{};
};

/// Remembers how long waits for an answer take, and tells how long to spin for the next: about twice as long, but not at
/// all where that is longer than `maxSpin`. Not thread-safe.
class WaitGate {
 public:
  using Duration = SpinGate::Duration;

  explicit WaitGate(Duration maxSpin) : maxSpin_(maxSpin), usualWait_(2 * maxSpin) {}

  void noteWait(Duration wait) {
    usualWait_ += (std::min(wait, 2 * maxSpin_) - usualWait_) / kMemory;
  }

  Duration spin() const {
    return usualWait_ < maxSpin_ ? std::min(maxSpin_, 2 * usualWait_ + kSlack) : Duration(0);
  }

 private:
  static constexpr int kMemory = 4; // waits that the usual one is about an average of
  static constexpr Duration kSlack = std::chrono::microseconds(10);

  const Duration maxSpin_;
  Duration usualWait_;
};

} // namespace torchwire
