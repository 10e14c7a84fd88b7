// Copies and fillings.
#include "test/support/cuda/address_map.h"
#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"
#include "test/support/cuda/transfer.h"

using namespace torchwire::cuda_stand_in;

namespace {

bool isHostMemory(const void* address) {
  const auto block = address_map::find(address);
  return block == nullptr || !block->isOfDevice();
}

} // namespace

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t handle) {
  return call([&] {
    const auto stream = stream_table::find(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle
                             : enqueueCopy(to, from, size, kind, stream);
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  return call([&] {
    const auto stream = stream_table::find(nullptr);
    const cudaError_t error = enqueueCopy(to, from, size, kind, stream);
    if (error != cudaSuccess || size == 0) {
      return error;
    }
    // Between devices, CUDA's does not wait either.
    if (isHostMemory(to) || isHostMemory(from)) {
      count(Count::kCopyWaits);
      stream_table::await(stream);
    }
    return generalError();
  });
}

cudaError_t cudaMemcpyPeerAsync(
    void* to, int toDevice, const void* from, int fromDevice, size_t size, cudaStream_t handle) {
  return call([&] {
    if (!isDevice(toDevice) || !isDevice(fromDevice)) {
      return cudaErrorInvalidDevice;
    }
    const auto stream = stream_table::find(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle
                             : enqueueCopy(to, from, size, cudaMemcpyDeviceToDevice, stream);
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t handle) {
  return call([&] {
    const auto stream = stream_table::find(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle
                             : enqueueFill(to, value, size, stream);
  });
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  return call([&] { return enqueueFill(to, value, size, stream_table::find(nullptr)); });
}
