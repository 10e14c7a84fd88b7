// An event as the guard hands it out.
#pragma once

#include <memory>
#include <mutex>

#include "test/support/accelerator/device.h"

namespace torchwire::accelerator {

/// Holds the last point that was recorded. Who waits for it waits for the point of that moment: a later record changes
/// nothing for them. Thread-safe.
class Event {
 public:
  explicit Event(Device& device) : device(device) {}

  void record(WorkStream& stream) {
    auto recorded = stream.record();
    std::lock_guard lock(mutex_);
    recorded_ = std::move(recorded);
  }

  std::shared_ptr<Completion> recorded() const {
    std::lock_guard lock(mutex_);
    return recorded_;
  }

  Device& device;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Completion> recorded_;
};

} // namespace torchwire::accelerator
