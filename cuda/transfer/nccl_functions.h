// NCCL's functions, in the library that torch has loaded.
#pragma once

#include <nccl.h>

#include <string>

namespace torchwire::cuda {

/// Those that torchwire calls. By name at run time: a torch may be built without NCCL, and a second copy of the library
/// would not know what torch has told the first.
struct NcclFunctions {
  decltype(&ncclGetVersion) getVersion = nullptr;
  decltype(&ncclGetUniqueId) getUniqueId = nullptr;
  decltype(&ncclCommInitRankConfig) commInitRankConfig = nullptr;
  decltype(&ncclCommGetAsyncError) commGetAsyncError = nullptr;
  decltype(&ncclCommAbort) commAbort = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclGetErrorString) getErrorString = nullptr;
  decltype(&ncclGetLastError) getLastError = nullptr;

  /// Throws std::runtime_error where the library is not there, or too old.
  static NcclFunctions load();

  /// Throws std::runtime_error, unless it has gone well or goes on. `communicator` may be null.
  void check(ncclResult_t result, const char* action, ncclComm_t communicator) const;
};

} // namespace torchwire::cuda
