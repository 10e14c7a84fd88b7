#include "cuda/transfer/communicator.h"

#include "cuda/transfer/cuda_library.h"

namespace torchwire::cuda {
namespace {

std::variant<Nccl*, std::string> loadNccl() {
  const auto entry = cudaEntryPoint("torchwireNccl");
  if (const auto* why = std::get_if<std::string>(&entry)) {
    return *why;
  }
  std::string error;
  Nccl* const loaded =
      reinterpret_cast<Nccl* (*)(std::string&)>(std::get<void*>(entry))(error); // NOLINT
  if (loaded == nullptr) {
    return error;
  }
  return loaded;
}

} // namespace

std::variant<Nccl*, std::string> nccl() {
  static const auto loaded = loadNccl();
  return loaded;
}

} // namespace torchwire::cuda
