// libtorch's envelope of calls in an autograd context.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <optional>

namespace torchwire {

/// The type of the call in a FORWARD_AUTOGRAD_REQ of libtorch's, which it keeps to itself. None if the message is another,
/// or does not begin as one of those does.
std::optional<torch::distributed::rpc::MessageType> typeInEnvelope(
    const torch::distributed::rpc::Message& message);

} // namespace torchwire
