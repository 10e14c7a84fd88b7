// Memory of devices, and pinned memory.
#include "test/support/cuda/address_map.h"
#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/faults.h"
#include "test/support/cuda/memory_block.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

using namespace torchwire::cuda_stand_in;

namespace {

/// As CUDA does, though it does not say so of each: memory is not freed while the devices work.
void awaitBeforeFree() {
  count(Count::kFreeWaits);
  stream_table::awaitAllDevices();
}

cudaError_t allocatePinned(void** address, size_t size) {
  *address = nullptr;
  if (const cudaError_t error = takeFault(Fault::kHostAlloc); error != cudaSuccess) {
    return error;
  }
  if (size == 0) {
    return cudaSuccess;
  }
  use(currentDevice());
  auto block = MemoryBlock::pinned(size);
  if (block == nullptr) {
    return cudaErrorMemoryAllocation;
  }
  count(Count::kHostAllocations);
  *address = block->base();
  address_map::add(std::move(block));
  return cudaSuccess;
}

} // namespace

cudaError_t cudaMalloc(void** address, size_t size) {
  return call([&] {
    *address = nullptr;
    if (const cudaError_t error = takeFault(Fault::kMalloc); error != cudaSuccess) {
      return error;
    }
    if (size == 0) {
      return cudaSuccess;
    }
    use(currentDevice());
    auto block = MemoryBlock::ofDevice(currentDevice(), size);
    if (block == nullptr) {
      return cudaErrorMemoryAllocation;
    }
    count(Count::kDeviceAllocations);
    *address = block->base();
    address_map::add(std::move(block));
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* address) {
  return call([&] {
    use(currentDevice());
    if (address == nullptr) {
      return cudaSuccess;
    }
    awaitBeforeFree();
    const auto block = address_map::remove(address, MemoryBlock::Kind::kDevice);
    if (block == nullptr) {
      return cudaErrorInvalidValue;
    }
    block->poison(); // another process may have it open
    return cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  return call([&] { return allocatePinned(address, size); });
}

cudaError_t cudaMallocHost(void** address, size_t size) {
  return call([&] { return allocatePinned(address, size); });
}

cudaError_t cudaFreeHost(void* address) {
  return call([&] {
    if (address == nullptr) {
      return cudaSuccess;
    }
    awaitBeforeFree();
    const auto block = address_map::remove(address, MemoryBlock::Kind::kPinned);
    return block == nullptr ? cudaErrorInvalidValue : cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
  return call([&] {
    if (address == nullptr || size == 0) {
      return cudaErrorInvalidValue;
    }
    use(currentDevice());
    return address_map::add(MemoryBlock::registered(address, size))
        ? cudaSuccess
        : cudaErrorHostMemoryAlreadyRegistered;
  });
}

cudaError_t cudaHostUnregister(void* address) {
  return call([&] {
    awaitBeforeFree();
    const auto block = address_map::remove(address, MemoryBlock::Kind::kRegistered);
    return block == nullptr ? cudaErrorHostMemoryNotRegistered : cudaSuccess;
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* address, unsigned) {
  return call([&] {
    const auto block = address_map::find(address);
    *device = address;
    return block == nullptr || block->isOfDevice() ? cudaErrorInvalidValue : cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return call([&] {
    *attributes = {};
    const auto block = address_map::find(address);
    if (block == nullptr) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = const_cast<void*>(address);
      return cudaSuccess;
    }
    attributes->devicePointer = const_cast<void*>(address);
    attributes->device = block->isOfDevice() ? block->device() : currentDevice();
    attributes->type = block->isOfDevice() ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->hostPointer = block->isOfDevice() ? nullptr : const_cast<void*>(address);
    return cudaSuccess;
  });
}
