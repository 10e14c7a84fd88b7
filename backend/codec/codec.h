// PyTorch's Message to one frame, and back.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/rpc/message.h>

#include <vector>

#include "backend/base/disposer.h"
#include "backend/wire/frame.h"

namespace torchwire {

/// For each tensor of a message the device of the receiver that it is for. Empty: all are for the CPU.
using TensorDevices = std::vector<c10::Device>;

/// Encodes a message as a request or response frame. The frame keeps the message alive while its
/// segments point into it, and lets it go through the disposer. The call id is entered later (setCallId).
/// Its tensors are on the CPU; `devices` says where they go. Throws c10::Error for a tensor that cannot be sent.
OutgoingFrame encodeMessage(
    FrameKind kind, c10::intrusive_ptr<torch::distributed::rpc::Message> message,
    const Disposer& disposer, const TensorDevices& devices = {});

/// Whether decodeMessage() will make tensors of the frame. Does not throw.
bool carriesTensors(const ReceivedFrame& received);

/// A message that has come.
struct DecodedMessage {
  c10::intrusive_ptr<torch::distributed::rpc::Message> message; // its tensors are on the CPU
  TensorDevices devices; // of this worker, that the tensors are for
};

/// The message in the frame, with the frame's call id as its id. Throws FormatError or c10::Error.
DecodedMessage decodeMessage(ReceivedFrame received);

} // namespace torchwire
