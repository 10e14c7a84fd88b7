// How a test waits for what happens on other threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>

#include "backend/base/annotations.h"

namespace torchwire {

/// Notified whenever something happened that a test may be waiting for. Thread-safe.
class Notifier {
 public:
  /// So long that only a hang exceeds it, even under a sanitizer on a busy machine.
  static constexpr std::chrono::milliseconds kPatience{10000};
  static constexpr std::chrono::milliseconds kGlance{50};

  void notify() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }

  /// Waits until the condition holds; false if it does not within the patience. The condition is
  /// asked unlocked, on the calling thread, at first, after every notification, and now and then, since not all that it may
  /// look at notifies.
  template <typename Condition>
  bool waitUntil(Condition holds, std::chrono::milliseconds patience = kPatience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    for (;;) {
      const uint64_t seen = count();
      if (holds()) {
        return true;
      }
      if (!waitForNext(seen, std::min(end, std::chrono::steady_clock::now() + kGlance)) &&
          std::chrono::steady_clock::now() >= end) {
        return holds();
      }
    }
  }

 private:
  uint64_t count() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return count_;
  }

  bool waitForNext(uint64_t seen, std::chrono::steady_clock::time_point end) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (count_ == seen) {
      if (changed_.wait_until(lock, end) == std::cv_status::timeout) {
        return count_ != seen;
      }
    }
    return true;
  }

  mutable Mutex mutex_{LockRank::test};
  std::condition_variable_any changed_;
  uint64_t count_ GUARDED_BY(mutex_) = 0;
};

} // namespace torchwire
