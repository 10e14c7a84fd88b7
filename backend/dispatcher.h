// What requests do: the request callback of the agent.
#pragma once

#include <torch/csrc/distributed/rpc/request_callback_impl.h>

namespace torchwire {

/// Runs Python functions, TorchScript functions and builtin operators as PyTorch does. RRef and autograd
/// messages are handed to libtorch's own handlers for now.
/// Thread-safe.
class Dispatcher final : public torch::distributed::rpc::RequestCallbackImpl {};

} // namespace torchwire
