// NVIDIA's management library (libnvidia-ml): all devices of the machine, also those that this process does not see.
// Its header is in no wheel.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device_uuid.h"
#include "test/support/cuda/settings.h"

using namespace torchwire::cuda_stand_in;

namespace {

// nvmlReturn_t
constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 2;
constexpr int kNotSupported = 3;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;

// nvmlGpuP2PStatus_t
constexpr int kPeersReach = 0;
constexpr int kPeersDoNotReach = 5; // NVML_P2P_STATUS_NOT_SUPPORTED

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

/// A device's number plus one, so that it is not null.
using Device = void*;

int numberOf(Device device) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1;
}

int giveDevice(int number, Device* device) {
  *device = reinterpret_cast<Device>(static_cast<uintptr_t>(number) + 1);
  return kSuccess;
}

int giveText(const char* value, char* text, unsigned size) {
  if (std::strlen(value) >= size) {
    return kInsufficientSize;
  }
  std::strcpy(text, value);
  return kSuccess;
}

} // namespace

TORCHWIRE_EXPORT int nvmlInit() {
  return kSuccess;
}

TORCHWIRE_EXPORT int nvmlInit_v2() {
  return kSuccess;
}

TORCHWIRE_EXPORT int nvmlShutdown() {
  return kSuccess;
}

TORCHWIRE_EXPORT const char* nvmlErrorString(int error) {
  return error == kSuccess ? "Success" : "an error of the stand-in";
}

TORCHWIRE_EXPORT int nvmlSystemGetCudaDriverVersion(int* version) {
  *version = CUDA_VERSION;
  return kSuccess;
}

TORCHWIRE_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

TORCHWIRE_EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(settings().devices);
  return kSuccess;
}

TORCHWIRE_EXPORT int nvmlDeviceGetCount(unsigned* count) {
  return nvmlDeviceGetCount_v2(count);
}

TORCHWIRE_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  return index < static_cast<unsigned>(settings().devices)
      ? giveDevice(static_cast<int>(index), device)
      : kInvalidArgument;
}

TORCHWIRE_EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, Device* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

TORCHWIRE_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  for (int number = 0; number < settings().devices; ++number) {
    if (uuidText(number) == uuid) {
      return giveDevice(number, device);
    }
  }
  return kNotFound;
}

TORCHWIRE_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device* device) {
  unsigned domain = 0;
  unsigned bus = 0;
  const bool parsed = std::sscanf(id, "%x:%x", &domain, &bus) == 2;
  return parsed && bus >= 1 && bus <= static_cast<unsigned>(settings().devices)
      ? giveDevice(static_cast<int>(bus) - 1, device)
      : kNotFound;
}

TORCHWIRE_EXPORT int nvmlDeviceGetUUID(Device device, char* text, unsigned size) {
  return giveText(uuidText(numberOf(device)).c_str(), text, size);
}

TORCHWIRE_EXPORT int nvmlDeviceGetName(Device, char* text, unsigned size) {
  return giveText("stand-in", text, size);
}

TORCHWIRE_EXPORT int nvmlDeviceGetP2PStatus(Device one, Device other, int, int* status) {
  *status = one == other || settings().peerAccess ? kPeersReach : kPeersDoNotReach;
  return kSuccess;
}

TORCHWIRE_EXPORT int nvmlDeviceGetMemoryInfo(Device, Memory* memory) {
  *memory = {settings().memory, settings().memory, 0};
  return kSuccess;
}

TORCHWIRE_EXPORT int nvmlDeviceGetComputeRunningProcesses(Device, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}

TORCHWIRE_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, int*) {
  return kNotSupported;
}

TORCHWIRE_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, void*) {
  return kNotSupported;
}
