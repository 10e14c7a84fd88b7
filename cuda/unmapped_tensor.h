// What a call fails with when a tensor of it is on a device that no device map leads on from.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <string>

#include "cuda/device_record.h"

namespace torchwire::cuda {

enum class Direction { request, response };

/// A tensor that cannot be sent.
struct UnmappedTensor {
  Direction direction;
  size_t index; // among the tensors of the message
  c10::Device device; // of the sender
};

/// Says which tensor cannot be sent and why, and the line that is missing in whose options. Has the words of PyTorch's
/// own errors, which people (and its tests) search for. The sender of a response is the callee.
[[nodiscard]] std::string noMapping(
    const UnmappedTensor& tensor, const DeviceRecord& sender, const DeviceRecord& receiver);

/// What a call failed with at the callee. Where a future of PyTorch's own has rejected a value for its device, which it does
/// before there is a message, with what to do about it; where it has lost a device while it completed, that; anything else
/// is returned as it is.
[[nodiscard]] std::string withRemedy(
    std::string error, const DeviceRecord& callee, const DeviceRecord& caller);

} // namespace torchwire::cuda
