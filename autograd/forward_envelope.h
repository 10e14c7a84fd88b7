// libtorch's envelope of calls in an autograd context.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

namespace torchwire {

/// The type of the request: of a FORWARD_AUTOGRAD_REQ of libtorch's that of the call in it, which libtorch keeps to itself.
torch::distributed::rpc::MessageType typeOfCall(const torch::distributed::rpc::Message& request);

} // namespace torchwire
