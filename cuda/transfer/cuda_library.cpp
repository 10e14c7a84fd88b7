#include "cuda/transfer/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>

namespace torchwire::cuda {
namespace {

constexpr const char* kCudaLibrary = "libtorchwire_cuda.so";

std::filesystem::path folderOfThisLibrary() {
  Dl_info self{};
  ::dladdr(reinterpret_cast<const void*>(&folderOfThisLibrary), &self); // NOLINT
  return std::filesystem::path(self.dli_fname).parent_path();
}

std::variant<void*, std::string> loadCuda() {
  const auto path = folderOfThisLibrary() / kCudaLibrary;
  if (!std::filesystem::exists(path)) {
    return "this torchwire was built without CUDA";
  }
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return std::string("torchwire's part for CUDA cannot be loaded: ") + ::dlerror(); // NOLINT
  }
  return library;
}

} // namespace

std::variant<void*, std::string> cudaEntryPoint(const char* name) {
  static const auto library = loadCuda();
  if (const auto* why = std::get_if<std::string>(&library)) {
    return *why;
  }
  void* const entry = ::dlsym(std::get<void*>(library), name);
  if (entry == nullptr) {
    return std::string("torchwire's part for CUDA was built without ") + name;
  }
  return entry;
}

} // namespace torchwire::cuda
