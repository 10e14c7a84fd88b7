// PyTorch's Message to one frame, and back.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include "backend/base/disposer.h"
#include "backend/codec/tensor_targets.h"
#include "backend/wire/frame.h"

namespace torchwire {

/// Encodes a message as a request or response frame. The frame keeps the message alive while its
/// segments point into it, and lets it go through the disposer. The call id is entered later (setCallId).
/// Its tensors are on the CPU; `targets` says where they go. Throws c10::Error for a tensor that cannot be sent.
OutgoingFrame encodeMessage(
    FrameKind kind, c10::intrusive_ptr<torch::distributed::rpc::Message> message,
    const Disposer& disposer, const TensorTargets& targets = {});

/// Whether decodeMessage() will make tensors of the frame. Does not throw.
bool carriesTensors(const ReceivedFrame& received);

/// A message that has come.
struct DecodedMessage {
  c10::intrusive_ptr<torch::distributed::rpc::Message> message; // its tensors are on the CPU
  TensorTargets targets;
};

/// The message in the frame, with the frame's call id as its id. Throws FormatError or c10::Error.
DecodedMessage decodeMessage(ReceivedFrame received);

} // namespace torchwire
