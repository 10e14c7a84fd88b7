#include "cuda/transfer/borrowed_blocks.h"

#include <utility>
#include <vector>

namespace torchwire::cuda {

std::shared_ptr<const DeviceMemory::View> BorrowedBlocks::open(
    WorkerId owner, const Offer& offer, c10::DeviceIndex device) {
  const Key key{owner, offer.memoryHandle, device};
  if (offer.kept) {
    MutexLock lock(mutex_);
    if (const auto found = open_.find(key); found != open_.end()) {
      return found->second;
    }
  }
  const std::shared_ptr<const DeviceMemory::View> view(
      new DeviceMemory::View(memory_.open(device, offer.memoryHandle, offer.eventHandle)),
      [&memory = memory_](const DeviceMemory::View* opened) {
        memory.close(*opened);
        delete opened;
      });
  if (!offer.kept) {
    return view;
  }
  MutexLock lock(mutex_);
  return open_.emplace(key, view)
      .first->second; // a block is lent once at a time, so there is none yet
}

void BorrowedBlocks::peerLost(WorkerId peer) {
  std::vector<std::shared_ptr<const DeviceMemory::View>> closed; // unlocked
  MutexLock lock(mutex_);
  for (auto open = open_.begin(); open != open_.end();) {
    if (std::get<WorkerId>(open->first) == peer) {
      closed.push_back(std::move(open->second));
      open = open_.erase(open);
    } else {
      ++open;
    }
  }
}

} // namespace torchwire::cuda
