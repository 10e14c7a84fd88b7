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

/// Of one end of a lane to the other.
struct LaneMessage {
  enum class Kind : uint8_t {
    fetch, // to the sender: the device of the receiver waits for this tensor, in this place
    drop, // to the sender: nobody wants the tensor
    receiverFailed, // to the sender
    senderFailed, // to the receiver
  };
  Kind kind = Kind::fetch;
  uint64_t lane = 0;
  uint64_t kept = 0; // the tensor, by its number
  uint64_t sequence = 0; // of `fetch`
  std::string error; // of the last two: why

  std::vector<char> encode() const;
  /// Throws FormatError.
  static LaneMessage decode(const std::vector<char>& body);
};

/// Asks a peer to be the receiving end of a lane, and whether these bytes come through it.
struct LaneTrial {
  c10::Device to = c10::kCPU; // the peer's device
  std::string gpu; // the sender's, whatever its number
  uint64_t lane = 0; // the sender's number for it
  std::string id; // of the communicator
  std::vector<char> expected;

  std::vector<char> encode() const;
  /// Throws FormatError.
  static LaneTrial decode(const std::vector<char>& body);
};

} // namespace torchwire::cuda
