#include "test/support/accelerator/device_memory.h"

#include <c10/util/Exception.h>

#include "test/support/accelerator/device.h"

namespace torchwire::accelerator {
namespace {

void freeBlock(void* context) {
  if (context != nullptr && !isForked()) {
    auto* const block = static_cast<Block*>(context);
    block->arena->free(block);
  }
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Device& device = accelerator::device(currentDevice());
    const c10::Device where(kType, static_cast<c10::DeviceIndex>(device.index));
    device.check();
    if (bytes == 0) {
      return {nullptr, nullptr, &freeBlock, where};
    }
    Block* block = nullptr;
    if (!device.health.takesAllocationFailure()) {
      block = device.memory.allocate(bytes, &currentWorkStream(device));
    }
    TORCH_CHECK_WITH(
        OutOfMemoryError, block != nullptr, "standin:", device.index,
        " is out of memory: tried to allocate ", bytes, " bytes");
    return {block->address, block, &freeBlock, where};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr; // a block is not found by its address
  }

  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "memory of the stand-in accelerator is copied by its streams only");
  }
};

} // namespace

c10::Allocator* deviceAllocator() {
  static DeviceAllocator* const allocator = new DeviceAllocator;
  return allocator;
}

void recordStream(const c10::DataPtr& data, const c10::Stream& stream) {
  if (data.get() != nullptr && data.get_deleter() == &freeBlock) {
    Arena::use(*static_cast<Block*>(data.get_context()), workStream(stream));
  }
}

} // namespace torchwire::accelerator
