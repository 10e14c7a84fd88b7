// How a test waits for what happens on other threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "backend/base/annotations.h"

namespace torchwire {

/// Rung whenever something happened that a test may be waiting for. Thread-safe.
class Notifier {
 public:
  /// So long that only a hang exceeds it, even under a sanitizer on a busy machine.
  static constexpr std::chrono::milliseconds kPatience{10000};

  void ring() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++rings_;
    rung_.notify_all();
  }

  /// Waits until the condition holds; false if it does not within the patience. The condition is
  /// asked unlocked, on the calling thread, at first and after every ring.
  template <typename Condition>
  bool waitUntil(Condition holds, std::chrono::milliseconds patience = kPatience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    for (;;) {
      const uint64_t seen = rings();
      if (holds()) {
        return true;
      }
      if (!waitForRing(seen, end)) {
        return holds();
      }
    }
  }

 private:
  uint64_t rings() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return rings_;
  }

  bool waitForRing(uint64_t seen, std::chrono::steady_clock::time_point end) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (rings_ == seen) {
      if (rung_.wait_until(lock, end) == std::cv_status::timeout) {
        return rings_ != seen;
      }
    }
    return true;
  }

  mutable Mutex mutex_{LockRank::test};
  std::condition_variable_any rung_;
  uint64_t rings_ GUARDED_BY(mutex_) = 0;
};

} // namespace torchwire
