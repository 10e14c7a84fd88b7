// Events: see EventRecord for what they mean.
#pragma once

#include <memory>

#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/event_record.h"
#include "test/support/cuda/shared_file.h"

namespace torchwire::cuda_stand_in {

/// Thread-safe.
class Event {
 public:
  /// Null if there is no memory for it.
  static std::shared_ptr<Event> make(int device, unsigned flags);
  /// That of another process; null if it has destroyed it.
  static std::shared_ptr<Event> open(int device, const SharedFileName& name);

  Event(int device, unsigned flags);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  int device() const {
    return device_;
  }
  bool hasTime() const {
    return (flags_ & cudaEventDisableTiming) == 0;
  }
  /// Whether it can be given to another process: not one that is of another process.
  bool canBeShared() const {
    return static_cast<bool>(file_);
  }
  SharedFileName fileName() const {
    return file_.name();
  }
  EventRecord& record() const {
    return *record_;
  }

 private:
  bool map(const SharedFile& file);

  const int device_;
  const unsigned flags_;
  SharedFile file_; // of an event for several processes
  EventRecord* mapped_ = nullptr; // the same
  std::unique_ptr<EventRecord> own_; // of any other
  EventRecord* record_ = nullptr;
};

} // namespace torchwire::cuda_stand_in
