// Whether a peer's device can read this worker's device's memory: tried, with bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "cuda/transfer/device_paths.h"
#include "cuda/transfer/ipc_transfers.h"
#include "cuda/transfer/transfer_messages.h"

namespace torchwire::cuda {

/// What the sender begins, and what is to be asked of the receiver.
struct MemoryTrial {
  TrialRequest request;
  uint64_t block = 0; // lent for it

  /// Lends random bytes. None where there is no room at present. Throws std::runtime_error or c10::Error with why the memory
  /// cannot be lent.
  static std::optional<MemoryTrial> begin(IpcTransfers& ipc, const DeviceRoute& route);

  /// The receiver's part: opens the block, copies it to its device and from there to the host, and compares. Waits for the
  /// device. Throws with what has failed.
  static void check(IpcTransfers& ipc, WorkerId from, const TrialRequest& request);
};

} // namespace torchwire::cuda
