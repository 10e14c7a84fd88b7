// How a test learns that a thread has ended which nobody joins.
#pragma once

#include <atomic>
#include <memory>

#include "test/unit/support/notifier.h"

namespace torchwire {

/// Rings when the thread ends on which it was made to watch(). Thread-safe.
class ThreadEnd {
 public:
  void watch() {
    thread_local std::shared_ptr<void> endsWithThread;
    endsWithThread = std::shared_ptr<void>(nullptr, [this](void*) {
      ended_ = true;
      notifier_.notify();
    });
  }
  bool wait() {
    return notifier_.waitUntil([this] { return ended_.load(); });
  }

 private:
  std::atomic<bool> ended_{false};
  Notifier notifier_;
};

} // namespace torchwire
