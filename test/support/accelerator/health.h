// Whether a device still works, and the failures that a test has ordered for it.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

namespace torchwire::accelerator {

/// A device that is lost stays so, as a GPU's context does after a failed kernel: its streams drop their work, and all
/// later calls fail with the first reason. Thread-safe.
class Health {
 public:
  bool isLost() const noexcept {
    return lost_.load();
  }

  void lose(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (!lost_.load()) {
      reason_ = reason;
      lost_.store(true);
    }
  }

  std::string reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }

  void failNextWork() noexcept {
    failWork_.store(true);
  }
  void failNextAllocation() noexcept {
    failAllocation_.store(true);
  }
  /// Whether this is the one that is to fail; asks for it once.
  bool takesWorkFailure() noexcept {
    return failWork_.exchange(false);
  }
  bool takesAllocationFailure() noexcept {
    return failAllocation_.exchange(false);
  }

  /// As a new process would find the device.
  void recover() {
    std::lock_guard lock(mutex_);
    reason_.clear();
    lost_.store(false);
    failWork_.store(false);
    failAllocation_.store(false);
  }

 private:
  mutable std::mutex mutex_;
  std::string reason_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> failWork_{false};
  std::atomic<bool> failAllocation_{false};
};

} // namespace torchwire::accelerator
