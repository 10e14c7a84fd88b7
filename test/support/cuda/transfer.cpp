#include "test/support/cuda/transfer.h"

#include <cstring>
#include <utility>
#include <vector>

#include "test/support/cuda/address_map.h"
#include "test/support/cuda/call.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/faults.h"
#include "test/support/cuda/memory_block.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

namespace torchwire::cuda_stand_in {
namespace {

// A copy to a device of no more than this does not wait, whatever memory it is from.
constexpr size_t kMostUnstaged = 64 << 10;

/// One end of a copy. It keeps the memory mapped.
struct Place {
  std::shared_ptr<MemoryBlock> block; // null: memory that CUDA does not know
  char* bytes;

  static Place of(const void* address) {
    auto block = address_map::find(address);
    char* const bytes =
        block == nullptr ? static_cast<char*>(const_cast<void*>(address)) : block->bytesAt(address);
    return {std::move(block), bytes};
  }

  bool isOfDevice() const {
    return block != nullptr && block->isOfDevice();
  }
  bool holds(const void* address, size_t size) const {
    return block == nullptr || block->contains(address, size);
  }
};

bool fits(cudaMemcpyKind kind, const Place& to, const Place& from) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to.isOfDevice() && !from.isOfDevice();
    case cudaMemcpyHostToDevice:
      return to.isOfDevice() && !from.isOfDevice();
    case cudaMemcpyDeviceToHost:
      return !to.isOfDevice() && from.isOfDevice();
    case cudaMemcpyDeviceToDevice:
      return to.isOfDevice() && from.isOfDevice();
    default:
      return kind == cudaMemcpyDefault;
  }
}

void countCopy(const Place& to, const Place& from, size_t size) {
  const auto isImported = [](const Place& place) {
    return place.block != nullptr && place.block->kind() == MemoryBlock::Kind::kImported;
  };
  count(Count::kCopies);
  count(Count::kCopiedBytes, size);
  if (to.isOfDevice() && from.isOfDevice() && to.block->device() != from.block->device()) {
    count(Count::kPeerCopies);
  }
  if (isImported(to) || isImported(from)) {
    count(Count::kIpcCopies);
  }
}

/// Whether the work is to be done. A device that is lost does nothing any more.
bool works() {
  if (takeFault(Fault::kWork) != cudaSuccess) {
    loseDevices();
  }
  return !devicesLost();
}

} // namespace

cudaError_t enqueueCopy(
    void* to, const void* from, size_t size, cudaMemcpyKind kind,
    const std::shared_ptr<Stream>& stream) {
  if (size == 0) {
    return cudaSuccess;
  }
  Place target = Place::of(to);
  Place source = Place::of(from);
  if (!fits(kind, target, source) || !target.holds(to, size) || !source.holds(from, size)) {
    return cudaErrorInvalidValue;
  }
  use(stream->device());
  countCopy(target, source, size);
  const bool waits = target.block == nullptr;
  if (source.block == nullptr) {
    if (size > kMostUnstaged && target.isOfDevice()) {
      count(Count::kCopyWaits);
      stream->now().await();
    }
    // The caller may overwrite it as soon as this returns.
    auto staged = std::make_shared<std::vector<char>>(source.bytes, source.bytes + size);
    stream_table::enqueue(stream, [target = std::move(target), staged = std::move(staged), size] {
      if (works()) {
        std::memcpy(target.bytes, staged->data(), size);
      }
    });
  } else {
    stream_table::enqueue(stream, [target = std::move(target), source = std::move(source), size] {
      if (works()) {
        std::memmove(target.bytes, source.bytes, size);
      }
    });
  }
  if (waits) {
    count(Count::kCopyWaits);
    stream->now().await();
  }
  return waits ? generalError() : cudaSuccess;
}

cudaError_t enqueueFill(void* to, int value, size_t size, const std::shared_ptr<Stream>& stream) {
  if (size == 0) {
    return cudaSuccess;
  }
  Place target = Place::of(to);
  if (target.block == nullptr || !target.holds(to, size)) {
    return cudaErrorInvalidValue;
  }
  use(stream->device());
  stream_table::enqueue(stream, [target = std::move(target), value, size] {
    if (works()) {
      std::memset(target.bytes, value, size);
    }
  });
  return cudaSuccess;
}

} // namespace torchwire::cuda_stand_in
