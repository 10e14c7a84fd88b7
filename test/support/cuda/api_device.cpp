// Devices and versions.
#include <cstdio>
#include <cstring>

#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/device_uuid.h"
#include "test/support/cuda/settings.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

using namespace torchwire::cuda_stand_in;

namespace {

constexpr int kProcessors = 8;
constexpr int kWarp = 32;
constexpr int kThreads = 1024;
constexpr int kSharedMemory = 48 << 10;

cudaDeviceProp propertiesOf(int device) {
  cudaDeviceProp properties{};
  std::strcpy(properties.name, "stand-in");
  std::memcpy(&properties.uuid, uuidBytes(machineDevice(device)).data(), sizeof(properties.uuid));
  properties.totalGlobalMem = settings().memory;
  properties.major = 9;
  properties.multiProcessorCount = kProcessors;
  properties.warpSize = kWarp;
  properties.maxThreadsPerBlock = kThreads;
  properties.maxThreadsPerMultiProcessor = 2 * kThreads;
  properties.maxBlocksPerMultiProcessor = kWarp;
  for (int axis = 0; axis < 3; ++axis) {
    properties.maxThreadsDim[axis] = axis == 2 ? 64 : kThreads;
    properties.maxGridSize[axis] = axis == 0 ? 0x7fffffff : 0xffff;
  }
  properties.sharedMemPerBlock = kSharedMemory;
  properties.sharedMemPerMultiprocessor = kSharedMemory;
  properties.sharedMemPerBlockOptin = kSharedMemory;
  properties.regsPerBlock = 1 << 16;
  properties.regsPerMultiprocessor = 1 << 16;
  properties.memPitch = 0x7fffffff;
  properties.textureAlignment = 512;
  properties.unifiedAddressing = 1;
  properties.asyncEngineCount = 1;
  properties.canMapHostMemory = 1;
  properties.concurrentKernels = 1;
  properties.hostRegisterSupported = 1;
  properties.streamPrioritiesSupported = 1;
  properties.memoryBusWidth = 1;
  properties.l2CacheSize = 1 << 20;
  properties.pciBusID = machineDevice(device) + 1;
  return properties;
}

int attributeOf(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrComputeMode:
      return settings().exclusive ? cudaComputeModeExclusiveProcess : cudaComputeModeDefault;
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrMultiProcessorCount:
      return kProcessors;
    case cudaDevAttrWarpSize:
      return kWarp;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
      return kThreads;
    case cudaDevAttrMaxSharedMemoryPerBlock:
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return kSharedMemory;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrIpcEventSupport:
      return 1;
    default:
      return 0; // what has no name here, the device does not have
  }
}

bool reach(int device, int peer) {
  return device != peer && settings().peerAccess;
}

} // namespace

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = deviceCount();
  return callOnHost([] { return cudaSuccess; });
}

cudaError_t cudaGetDevice(int* device) {
  return callOnHost([&] {
    *device = currentDevice();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return callOnHost([&] {
    if (!isDevice(device)) {
      return cudaErrorInvalidDevice;
    }
    setCurrentDevice(device);
    use(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return callOnHost([&] {
    if (!isDevice(device)) {
      return cudaErrorInvalidDevice;
    }
    *properties = propertiesOf(device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return callOnHost([&] {
    if (!isDevice(device)) {
      return cudaErrorInvalidDevice;
    }
    *value = attributeOf(attribute);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  return callOnHost([&] {
    if (!isDevice(device)) {
      return cudaErrorInvalidDevice;
    }
    const int length = std::snprintf(text, size, "0000:%02X:00.0", machineDevice(device) + 1);
    return length < size ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return callOnHost([] { return cudaSuccess; });
}

cudaError_t cudaDeviceSynchronize() {
  return call([] {
    count(Count::kDeviceSynchronize);
    stream_table::awaitDevice(currentDevice());
    return generalError(); // of the work that was awaited
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return callOnHost([&] {
    if (!isDevice(device) || !isDevice(peer)) {
      return cudaErrorInvalidDevice;
    }
    *can = reach(device, peer);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return callOnHost([&] {
    if (flags != 0 || !isDevice(peer)) {
      return flags != 0 ? cudaErrorInvalidValue : cudaErrorInvalidDevice;
    }
    return reach(currentDevice(), peer) ? cudaSuccess : cudaErrorPeerAccessUnsupported;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&] {
    *free = freeMemory(currentDevice());
    *total = settings().memory;
    return cudaSuccess;
  });
}

cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}
