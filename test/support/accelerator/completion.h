// Something that happens once, and that streams and threads wait for.
#pragma once

#include <condition_variable>
#include <mutex>

namespace torchwire::accelerator {

/// A point in a stream's work: complete once the stream has come to it. Thread-safe.
class Completion {
 public:
  void complete() {
    {
      std::lock_guard lock(mutex_);
      complete_ = true;
    }
    changed_.notify_all();
  }

  bool isComplete() const {
    std::lock_guard lock(mutex_);
    return complete_;
  }

  void wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return complete_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool complete_ = false;
};

} // namespace torchwire::accelerator
