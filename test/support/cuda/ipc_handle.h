// What is in the 64 bytes that a process sends to another one, to give it memory or an event.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "test/support/cuda/shared_file.h"

namespace torchwire::cuda_stand_in {

/// A value; plain bytes.
struct IpcHandle {
  static constexpr uint64_t kMemory = 0x79726f6d654d5754;
  static constexpr uint64_t kEvent = 0x746e6576455d5754;

  uint64_t kind;
  int32_t machineDevice;
  SharedFileName file;

  template <typename CudaHandle>
  static CudaHandle packed(const IpcHandle& handle) {
    static_assert(sizeof(IpcHandle) <= sizeof(CudaHandle));
    CudaHandle bytes{};
    std::memcpy(&bytes, &handle, sizeof(handle));
    return bytes;
  }

  /// Nothing if the bytes are no handle of that kind.
  template <typename CudaHandle>
  static std::optional<IpcHandle> unpacked(const CudaHandle& bytes, uint64_t kind) {
    IpcHandle handle;
    std::memcpy(&handle, &bytes, sizeof(handle));
    return handle.kind == kind ? std::optional(handle) : std::nullopt;
  }
};

} // namespace torchwire::cuda_stand_in
