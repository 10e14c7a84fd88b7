// What travels for a tensor whose elements go another way than in the frame.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cuda/transfer/borrowed_blocks.h"
#include "cuda/transfer/device_paths.h"

namespace torchwire::cuda {

/// Where the receiver finds a tensor. A value. docs/protocol.md has the bytes.
struct TensorTicket {
  DevicePath path = DevicePath::process;
  uint64_t number = 0; // by `process`: in the sender's KeptTensors; by `nccl`: in its SendingLane
  uint64_t lane = 0; // by `nccl`: the lane's number, of the sender's
  // By `ipc` and `nccl`.
  at::ScalarType dtype = at::kByte;
  bool requiresGrad = false;
  std::vector<int64_t> sizes; // in the order in which the dimensions lie in memory
  /// Which of those is the tensor's first dimension, and so on; empty: they are in order.
  std::vector<int64_t> order;
  c10::Device from = c10::kCPU; // the sender's device, for what is said of the route
  BorrowedBlocks::Offer
      block; // by `ipc`: the elements are in it, one after another, from its begin on

  /// Enters what is to be known of a tensor by `ipc` or `nccl`. Returns a view of it with its dimensions in that order: so are
  /// its elements to be sent, one after another.
  at::Tensor describe(const at::Tensor& tensor);
  /// What describe() was called with, from its elements: on the receiver's device, and of `sizes`.
  at::Tensor restore(at::Tensor elements) const;

  /// How many bytes the elements have. Throws FormatError if that is no number.
  size_t bytes() const;

  /// As a tensor of bytes on the CPU.
  at::Tensor encode() const;
  /// Throws FormatError.
  static TensorTicket decode(const at::Tensor& bytes);
};

} // namespace torchwire::cuda
