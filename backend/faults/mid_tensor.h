// How a fault reaches the middle of a tensor: links decide on it, channels carry it out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "backend/base/annotations.h"

namespace torchwire::faults {

/// Where a link leaves the fault for the channel that will send the tensor, which is told by its address: the
/// two know nothing else of each other.
///
///     link ── arm(data, inject) ──▶ MidTensor ◀── take(data) ── channel: first half, inject(goOn), second half
///
/// Thread-safe. Held by shared_ptr: what was armed refers to it.
class MidTensor : public std::enable_shared_from_this<MidTensor> {
 public:
  using GoOn = std::function<void()>;
  /// Does the fault when half of the tensor has gone, and then calls `goOn`, on any thread, for the rest to go:
  /// possibly before it returns, or never. Called once.
  using Injection = std::function<void(GoOn goOn)>;

  /// Leaves a fault for whoever sends these bytes next. The fault is withdrawn when the last copy of what this
  /// returns is gone, unless it was taken before.
  [[nodiscard]] std::shared_ptr<void> arm(const void* data, Injection inject) EXCLUDES(mutex_);

  /// The fault for these bytes, which are about to be sent; an empty function: none.
  Injection take(const void* data) EXCLUDES(mutex_);

 private:
  void disarm(uint64_t id) EXCLUDES(mutex_);

  struct Armed {
    uint64_t id;
    Injection inject;
  };

  Mutex mutex_{LockRank::midTensor};
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  std::multimap<const void*, Armed> armed_ GUARDED_BY(mutex_); // of one address, the oldest first
};

} // namespace torchwire::faults
