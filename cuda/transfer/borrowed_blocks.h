// Memory of peers' devices that this worker copies tensors from.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"
#include "cuda/transfer/device_memory.h"

namespace torchwire::cuda {

/// Opens peers' blocks, and keeps those open that their owner keeps: opening one takes far longer than copying from it.
/// Thread-safe; may wait for the device.
class BorrowedBlocks {
 public:
  /// What a peer says of a block.
  struct Offer {
    uint64_t id = 0;
    bool kept = false;
    std::string memoryHandle;
    std::string eventHandle;
  };

  explicit BorrowedBlocks(DeviceMemory& memory) : memory_(memory) {}

  /// The block as the device sees it; closed when nobody has it any more. Throws std::runtime_error.
  std::shared_ptr<const DeviceMemory::View> open(
      WorkerId owner, const Offer& offer, c10::DeviceIndex device) EXCLUDES(mutex_);

  void peerLost(WorkerId peer) EXCLUDES(mutex_);

 private:
  // By the handle: numbers begin anew in a worker that has been restarted.
  using Key = std::tuple<WorkerId, std::string, c10::DeviceIndex>;

  DeviceMemory& memory_; // lives as long as the process
  Mutex mutex_{LockRank::borrowedBlocks};
  std::map<Key, std::shared_ptr<const DeviceMemory::View>> open_ GUARDED_BY(mutex_);
};

} // namespace torchwire::cuda
