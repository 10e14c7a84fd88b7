#include "cuda/transfer/device_memory.h"

#include <dlfcn.h>

#include <filesystem>

namespace torchwire::cuda {
namespace {

// CUDA's is a library of its own, beside this one: it needs CUDA's libraries, which not every torch has, and which a worker
// without CUDA tensors has no use for.
constexpr const char* kCudaLibrary = "libtorchwire_cuda.so";
constexpr const char* kEntryPoint = "torchwireCudaMemory";

std::filesystem::path folderOfThisLibrary() {
  Dl_info self{};
  ::dladdr(reinterpret_cast<const void*>(&folderOfThisLibrary), &self); // NOLINT
  return std::filesystem::path(self.dli_fname).parent_path();
}

std::variant<DeviceMemory*, std::string> loadCudas() {
  const auto path = folderOfThisLibrary() / kCudaLibrary;
  if (!std::filesystem::exists(path)) {
    return "this torchwire was built without CUDA";
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const entry = library == nullptr ? nullptr : ::dlsym(library, kEntryPoint);
  if (entry == nullptr) {
    return std::string("torchwire's part for CUDA cannot be loaded: ") + ::dlerror(); // NOLINT
  }
  return reinterpret_cast<DeviceMemory* (*)()>(entry)(); // NOLINT
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
