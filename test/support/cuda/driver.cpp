// The driver's functions (libcuda): those that TensorPipe and PyTorch call.
#include <dlfcn.h>

#include <cstring>

#include "test/support/cuda/address_map.h"
#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/device_uuid.h"

using namespace torchwire::cuda_stand_in;

namespace {

/// A call of the runtime, in the driver's terms: the numbers of errors are the same.
CUresult resultOf(cudaError_t error) {
  return static_cast<CUresult>(error);
}

/// CUDA's runtime has the texts, and needs no driver for them.
const char* textOf(const char* function, CUresult error) {
  using Function = const char* (*)(cudaError_t);
  const auto real = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, function));
  return real == nullptr ? "an error of the stand-in" : real(static_cast<cudaError_t>(error));
}

CUresult uuidOf(CUuuid* uuid, CUdevice device) {
  if (!isDevice(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  std::memcpy(uuid, uuidBytes(machineDevice(device)).data(), sizeof(*uuid));
  return CUDA_SUCCESS;
}

template <typename Value>
CUresult give(void* to, Value value) {
  std::memcpy(to, &value, sizeof(value));
  return CUDA_SUCCESS;
}

CUresult attributeOf(const MemoryBlock& block, void* value, CUpointer_attribute attribute) {
  const int device = block.isOfDevice() ? block.device() : currentDevice();
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(value, device);
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(value, contextOf(device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(value, block.isOfDevice() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(value, 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(value, block.base());
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(value, block.size());
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(value, static_cast<int>(block.kind() == MemoryBlock::Kind::kDevice));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

} // namespace

CUresult cuInit(unsigned) {
  return resultOf(generalError());
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = textOf("cudaGetErrorName", error);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = textOf("cudaGetErrorString", error);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = deviceCount();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return isDevice(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  // These, too, have the same numbers.
  return resultOf(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}

// Programs ask for it by either name.
#undef cuDeviceGetUuid
TORCHWIRE_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return uuidOf(uuid, device);
}

TORCHWIRE_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return uuidOf(uuid, device);
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = static_cast<CUcontext>(currentContext());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  setCurrentContext(context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (!isDevice(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *flags = 0;
  *active = isUsed(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!isDevice(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  use(device);
  *context = static_cast<CUcontext>(contextOf(device));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  const auto block = address_map::find(reinterpret_cast<void*>(address));
  if (block == nullptr || !block->isOfDevice()) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) {
    *base = reinterpret_cast<CUdeviceptr>(block->base());
  }
  if (size != nullptr) {
    *size = block->size();
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const auto block = address_map::find(reinterpret_cast<void*>(address));
  return block == nullptr ? CUDA_ERROR_INVALID_VALUE : attributeOf(*block, value, attribute);
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* status) {
  *function = ::dlsym(RTLD_DEFAULT, symbol);
  if (status != nullptr) {
    *status =
        *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}
