// What the transfers of two workers tell each other, apart from the tickets in messages.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "backend/base/bytes.h"

namespace torchwire::cuda {

/// To the sender of tensors by `ipc`: which blocks are no longer needed, or could not be used.
struct BlocksDone {
  struct Block {
    uint64_t id = 0;
    std::string error; // why it could not be read; empty: it was
    c10::Device from = c10::kCPU; // of the route that has failed
    c10::Device to = c10::kCPU;
  };
  std::vector<Block> blocks;

  std::vector<char> encode() const;
  /// Throws FormatError.
  static BlocksDone decode(const std::vector<char>& body);
};

/// Asks a peer to read a block, and whether it has these bytes.
struct TrialRequest {
  c10::Device to = c10::kCPU; // the peer's device
  std::vector<char> ticket; // as in a message
  std::vector<char> expected;

  std::vector<char> encode() const;
  /// Throws FormatError.
  static TrialRequest decode(const std::vector<char>& body);
};

} // namespace torchwire::cuda
