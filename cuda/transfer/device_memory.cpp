#include "cuda/transfer/device_memory.h"

#include "cuda/transfer/cuda_library.h"

namespace torchwire::cuda {
namespace {

std::variant<DeviceMemory*, std::string> loadCudas() {
  const auto entry = cudaEntryPoint("torchwireCudaMemory");
  if (const auto* why = std::get_if<std::string>(&entry)) {
    return *why;
  }
  return reinterpret_cast<DeviceMemory* (*)()>(std::get<void*>(entry))(); // NOLINT
}

} // namespace

std::variant<DeviceMemory*, std::string> deviceMemoryOf(c10::DeviceType type) {
  if (type != c10::DeviceType::CUDA) {
    return "processes do not open each other's memory of " +
        c10::DeviceTypeName(type, /*lower_case=*/true) + " devices";
  }
  static const auto cudas = loadCudas();
  return cudas;
}

} // namespace torchwire::cuda
