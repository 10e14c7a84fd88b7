// Whether a message that has begun goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "backend/transport/loop_watch.h"

namespace torchwire {

/// Whoever writes a message has all of it: where the rest of one does not come, its length was changed on the way, or a
/// part was left out, and nothing else would say so. Loop-bound.
class StallWatch {
 public:
  /// `stalled` is called once, on the loop, when a message has begun and nothing has come for so long. It may destroy the
  /// watch.
  StallWatch(Loop& loop, std::chrono::milliseconds patience, std::function<void()> stalled);

  /// After each look at what has come: whether there is a part of a message, and how many bytes there have been in all.
  void observe(bool hasBegun, uint64_t arrived);

 private:
  using Clock = std::chrono::steady_clock;

  void start(Clock::duration after, bool isLastLook);
  void onTimer(bool isLastLook);

  const std::chrono::milliseconds patience_;
  std::function<void()> stalled_;
  bool hasBegun_ = false;
  uint64_t arrived_ = 0;
  Clock::time_point since_; // that has been all
  bool runs_ = false;
  LoopTimer timer_;
};

} // namespace torchwire
