#include "cuda/transfer/nccl_functions.h"

#include <dlfcn.h>

#include <stdexcept>

namespace torchwire::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

void* library() {
  if (void* const loaded = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD)) {
    return loaded;
  }
  if (void* const found = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    return found;
  }
  throw std::runtime_error(std::string("NCCL cannot be loaded: ") + ::dlerror()); // NOLINT
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name)); // NOLINT
  if (function == nullptr) {
    throw std::runtime_error(std::string(kLibrary) + " has no " + name);
  }
}

std::string textOf(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
}

} // namespace

NcclFunctions NcclFunctions::load() {
  void* const from = library();
  NcclFunctions functions;
  find(from, "ncclGetVersion", functions.getVersion);
  find(from, "ncclGetUniqueId", functions.getUniqueId);
  find(from, "ncclCommInitRankConfig", functions.commInitRankConfig);
  find(from, "ncclCommGetAsyncError", functions.commGetAsyncError);
  find(from, "ncclCommAbort", functions.commAbort);
  find(from, "ncclSend", functions.send);
  find(from, "ncclRecv", functions.receive);
  find(from, "ncclGetErrorString", functions.getErrorString);
  find(from, "ncclGetLastError", functions.getLastError);
  int version = 0;
  functions.check(functions.getVersion(&version), "ncclGetVersion", nullptr);
  if (version / 100 < NCCL_VERSION_CODE / 100) { // it would not know the whole of ncclConfig_t
    throw std::runtime_error(
        "torch has loaded NCCL " + textOf(version) + ", which is older than the " +
        textOf(NCCL_VERSION_CODE) + " that torchwire was built for");
  }
  return functions;
}

void NcclFunctions::check(ncclResult_t result, const char* action, ncclComm_t communicator) const {
  if (result == ncclSuccess || result == ncclInProgress) {
    return;
  }
  std::string text = std::string(action) + " failed: " + getErrorString(result);
  const char* const last = getLastError(communicator);
  if (last != nullptr && *last != '\0') {
    text += std::string(" (") + last + ")";
  }
  throw std::runtime_error(text);
}

} // namespace torchwire::cuda
