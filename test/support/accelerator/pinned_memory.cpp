#include "test/support/accelerator/pinned_memory.h"

#include <atomic>
#include <cstring>

#include <c10/util/Exception.h>

#include "test/support/accelerator/device.h"

namespace torchwire::accelerator {
namespace {

std::atomic<bool> failNext{false};

Arena& arena() {
  static Arena* const pinned = new Arena(Arena::Access::host);
  return *pinned;
}

void freeBlock(void* context) {
  if (context != nullptr && !isForked()) {
    arena().free(static_cast<Block*>(context));
  }
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &freeBlock, c10::DeviceType::CPU};
    }
    Block* const block = failNext.exchange(false) ? nullptr : arena().allocate(bytes, nullptr);
    TORCH_CHECK_WITH(
        OutOfMemoryError, block != nullptr, "there is no pinned memory left: tried to allocate ",
        bytes, " bytes");
    return {block->address, block, &freeBlock, c10::DeviceType::CPU};
  }

  /// `context` may be null, or one that wraps ours: as CUDA's, it then goes by the address.
  bool record_event(void* address, void* /*context*/, c10::Stream stream) override {
    Block* const block = arena().find(address);
    if (block != nullptr) {
      Arena::use(*block, workStream(stream));
    }
    return block != nullptr;
  }

  void copy_data(void* destination, const void* source, size_t count) const override {
    std::memcpy(destination, source, count);
  }

  void empty_cache() override {}
  at::HostStats get_stats() override {
    return {};
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

} // namespace

at::HostAllocator* pinnedAllocator() {
  static PinnedAllocator* const allocator = new PinnedAllocator;
  return allocator;
}

bool isPinned(const void* address) {
  return arena().find(address) != nullptr;
}

void recordPinned(const void* address, const c10::Stream& stream) {
  pinnedAllocator()->record_event(const_cast<void*>(address), nullptr, stream);
}

void failNextPinnedAllocation() noexcept {
  failNext.store(true);
}

size_t pinnedBytes() {
  return arena().allocatedBytes();
}

size_t pinnedWritesAfterFree() {
  return arena().writesAfterFree();
}

} // namespace torchwire::accelerator
