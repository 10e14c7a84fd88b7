// CUDA's DeviceMemory. The only source with CUDA in it, and a library of its own: see device_memory.cpp.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <stdexcept>

#include "cuda/transfer/cuda_check.h"
#include "cuda/transfer/device_memory.h"

namespace torchwire::cuda {
namespace {

template <typename Handle>
std::string bytesOf(const Handle& handle) {
  return {reinterpret_cast<const char*>(&handle), sizeof handle}; // NOLINT
}

template <typename Handle>
Handle handleIn(const std::string& bytes) {
  Handle handle;
  if (bytes.size() != sizeof handle) {
    throw std::runtime_error("a handle of CUDA's has " + std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(&handle, bytes.data(), sizeof handle);
  return handle;
}

cudaEvent_t eventOf(void* event) {
  return static_cast<cudaEvent_t>(event);
}

void destroy(void* event) {
  if (event != nullptr) {
    (void)cudaEventDestroy(eventOf(event));
  }
}

/// For what frees: on a device that is lost there is nothing left to free.
template <typename Body>
void onDevice(c10::DeviceIndex device, Body body) noexcept {
  try {
    const c10::cuda::CUDAGuard guard(device);
    body();
    (void)cudaGetLastError();
  } catch (const std::exception&) { // of the guard's
  }
}

void* allocateMemory(size_t bytes) {
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    c10::cuda::CUDACachingAllocator::emptyCache(); // of what the program does not use at present
    error = cudaMalloc(&data, bytes);
  }
  check(error, "cudaMalloc");
  return data;
}

class CudaMemory final : public DeviceMemory {
 public:
  // Not from PyTorch's allocator, whose memory is a part of something larger, or cannot be opened by others at all
  // (expandable segments).
  Block allocate(c10::DeviceIndex device, size_t bytes) override {
    const c10::cuda::CUDAGuard guard(device);
    Block block;
    block.device = device;
    block.bytes = bytes;
    block.data = allocateMemory(bytes);
    try {
      cudaIpcMemHandle_t memory;
      check(cudaIpcGetMemHandle(&memory, block.data), "cudaIpcGetMemHandle");
      cudaEvent_t event = nullptr;
      check(
          cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess),
          "cudaEventCreateWithFlags");
      block.event = event;
      cudaIpcEventHandle_t handle;
      check(cudaIpcGetEventHandle(&handle, event), "cudaIpcGetEventHandle");
      block.memoryHandle = bytesOf(memory);
      block.eventHandle = bytesOf(handle);
    } catch (...) {
      free(block);
      throw;
    }
    return block;
  }

  void free(const Block& block) noexcept override {
    onDevice(block.device, [&] {
      (void)cudaFree(block.data);
      destroy(block.event);
    });
  }

  View open(
      c10::DeviceIndex device, const std::string& memoryHandle,
      const std::string& eventHandle) override {
    const c10::cuda::CUDAGuard guard(device);
    View view;
    view.device = device;
    check(
        cudaIpcOpenMemHandle(
            &view.data, handleIn<cudaIpcMemHandle_t>(memoryHandle), cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle");
    try {
      cudaEvent_t event = nullptr;
      check(
          cudaIpcOpenEventHandle(&event, handleIn<cudaIpcEventHandle_t>(eventHandle)),
          "cudaIpcOpenEventHandle");
      view.event = event;
    } catch (...) {
      close(view);
      throw;
    }
    return view;
  }

  void close(const View& view) noexcept override {
    onDevice(view.device, [&] {
      (void)cudaIpcCloseMemHandle(view.data);
      destroy(view.event);
    });
  }

  void record(void* event, c10::Stream stream) override {
    const c10::cuda::CUDAGuard guard(stream.device_index());
    check(
        cudaEventRecord(eventOf(event), c10::cuda::CUDAStream(stream).stream()), "cudaEventRecord");
  }

  void wait(void* event, c10::Stream stream) override {
    const c10::cuda::CUDAGuard guard(stream.device_index());
    check(
        cudaStreamWaitEvent(c10::cuda::CUDAStream(stream).stream(), eventOf(event), 0),
        "cudaStreamWaitEvent");
  }
};

} // namespace
} // namespace torchwire::cuda

/// The entry point.
extern "C" __attribute__((visibility("default"))) torchwire::cuda::DeviceMemory*
torchwireCudaMemory() {
  static torchwire::cuda::CudaMemory memory;
  return &memory;
}
