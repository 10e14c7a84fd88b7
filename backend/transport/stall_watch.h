// Whether a message that has begun goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "backend/transport/loop_watch.h"

namespace torchwire {

/// A sender has the whole message when it begins to write it. If the rest does not come, its length was changed, a part
/// was left out, or the network or the peer has stalled. Loop-bound.
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
  Clock::time_point since_; // arrived_ last changed
  bool runs_ = false;
  LoopTimer timer_;
};

} // namespace torchwire
