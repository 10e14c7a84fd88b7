// Tensors that the receiver copies from memory of the sender's device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/transfer/borrowed_blocks.h"
#include "cuda/transfer/device_memory.h"
#include "cuda/transfer/lent_blocks.h"
#include "cuda/transfer/tensor_ticket.h"

namespace torchwire::cuda {

/// The sender copies a tensor to a block of its own, in the order of its current stream, so that the program may change
/// the tensor as soon as it has been sent; the receiver copies from there, behind the sender's copy, and tells the sender
/// once that has been done. The host waits for neither. Thread-safe.
class IpcTransfers {
 public:
  /// `release`: of LentBlocks.
  IpcTransfers(DeviceMemory& memory, LentBlocks::Release release)
      : memory_(memory), lent_(memory, std::move(release)), borrowed_(memory) {}

  /// The tensor, for a peer. None where there is no room for it. Throws std::runtime_error or c10::Error.
  std::optional<TensorTicket> lend(WorkerId to, const at::Tensor& tensor);

  /// A copy that has been started.
  struct Fetched {
    at::Tensor tensor; // filled on this thread's current stream
    std::shared_ptr<const DeviceMemory::View> from; // to be kept until then
    c10::Event copied;
  };
  /// Throws std::runtime_error or c10::Error.
  Fetched fetch(WorkerId from, const TensorTicket& ticket, c10::Device to);

  /// The peer needs the block no longer.
  void giveBack(WorkerId from, uint64_t block) {
    lent_.giveBack(from, block);
  }

  /// At the loss of the connection. The first does not wait.
  void retireLent(WorkerId peer) {
    lent_.peerLost(peer);
  }
  void closeBorrowed(WorkerId peer) {
    borrowed_.peerLost(peer);
  }

  LentBlocks::Usage usage() const {
    return lent_.usage();
  }

 private:
  DeviceMemory& memory_;
  LentBlocks lent_;
  BorrowedBlocks borrowed_;
};

} // namespace torchwire::cuda
