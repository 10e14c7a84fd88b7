// The devices: their streams, their memory, and what is current on a thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "test/support/accelerator/arena.h"
#include "test/support/accelerator/health.h"
#include "test/support/accelerator/statistics.h"
#include "test/support/accelerator/work_stream.h"

namespace torchwire::accelerator {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr c10::StreamId kDefaultStream = 0;
inline constexpr c10::StreamId kPooledStreams = 32; // with the ids after it

/// Thread-safe.
class Device {
 public:
  explicit Device(int index);

  /// Throws c10::Error for an id that there is not.
  WorkStream& stream(c10::StreamId id);
  /// The pool's streams in turn, as CUDA's: a program that takes more than there are shares them.
  c10::StreamId takePooledStream();
  const std::vector<std::unique_ptr<WorkStream>>& streams() const {
    return streams_;
  }

  /// Throws c10::AcceleratorError if the device is lost, or the process was forked from one that has used it.
  void check() const;
  /// As check(), once it is complete.
  void wait(const Completion& completion, Wait kind) const;
  void synchronize(Wait kind) const;

  const int index;
  Health health;
  Arena memory{Arena::Access::device};

 private:
  std::vector<std::unique_ptr<WorkStream>> streams_;
  std::atomic<uint32_t> taken_{0};
};

/// Of this process, never destroyed: libtorch's registries, through which they are reached, are as long-lived. An index
/// of -1 is the thread's current device. Throws c10::Error for one that there is not.
Device& device(c10::DeviceIndex index);
c10::DeviceIndex deviceCount() noexcept;
WorkStream& workStream(const c10::Stream& stream);

// What is current on the calling thread, as with CUDA.
c10::DeviceIndex currentDevice() noexcept;
void setCurrentDevice(c10::DeviceIndex index) noexcept;
c10::Stream currentStream(c10::DeviceIndex index) noexcept;
void setCurrentStream(const c10::Stream& stream) noexcept;
WorkStream& currentWorkStream(Device& device);

/// Whether this process has no device that works, because its parent had begun to use them before the fork.
bool isForked() noexcept;
/// Ends the threads, dropping the work that is left. For the end of the process.
void shutDown();

} // namespace torchwire::accelerator
