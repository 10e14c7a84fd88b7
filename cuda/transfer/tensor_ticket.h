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
  uint64_t number = 0; // by `process`: in the sender's KeptTensors
  // By `ipc`: the elements, one after another, from the begin of a block on.
  at::ScalarType dtype = at::kByte;
  bool requiresGrad = false;
  std::vector<int64_t> sizes; // in the order in which the dimensions lie in memory
  std::vector<int64_t> order; // which of those is the tensor's first dimension, and so on; empty: they are in order
  c10::Device from = c10::kCPU; // the sender's device, for what is said of the route
  BorrowedBlocks::Offer block;

  /// How many bytes the elements have. Throws FormatError if that is no number.
  size_t bytes() const;

  /// As a tensor of bytes on the CPU.
  at::Tensor encode() const;
  /// Throws FormatError.
  static TensorTicket decode(const at::Tensor& bytes);
};

} // namespace torchwire::cuda
