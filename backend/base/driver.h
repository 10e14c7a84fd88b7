// What a thread can do while it waits.
#pragma once

#include <functional>

namespace torchwire {

/// Brings what threads wait for, and lets them help. Thread-safe.
class Driver {
 public:
  virtual ~Driver() = default;

  /// Does on the calling thread what brings events, until `isOver` says so, or for a moment that is long enough for a
  /// quick answer. Returns at once where another thread does so already. The caller holds no lock, nor the GIL.
  /// `isOver` is called often: it is quick and takes no lock.
  virtual void drive(const std::function<bool()>& isOver) = 0;

  /// Has a thread that drives look at its isOver() soon. On any thread.
  virtual void interrupt() = 0;
};

} // namespace torchwire
