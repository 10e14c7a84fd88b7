// Direct calls (backend/serve/direct_call.h) that are part of an autograd context. They travel as libtorch's calls do
// that it wraps, in messages of the same types, but with torchwire's own envelope:
//
// | body                  | first byte | then                                                                   |
// | --------------------- | ---------- | ---------------------------------------------------------------------- |
// | FORWARD_AUTOGRAD_REQ  | 4          | i64 context, i64 the autograd message's id, body of the PYTHON_CALL    |
// | FORWARD_AUTOGRAD_RESP | 4          | the same, body of the PYTHON_RET. Where the result needs no gradients, |
// |                       |            | a PYTHON_RET comes instead                                             |
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <functional>
#include <optional>
#include <string_view>

#include "autograd/pass/context_registry.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// When a call becomes part of its thread's autograd context.
enum class JoinsContext { never, withGradients, always };

/// Makes a call part of the thread's context, if `joins` says so. The thread has one. Attaches a send function to tensors
/// that need gradients. A direct call gets torchwire's envelope, any other libtorch's, with `deviceMap`: the callee's device
/// for each of this worker's. Returns the context that it is part of.
std::optional<ContextId> joinContext(
    WorkerId callee, JoinsContext joins, const torch::distributed::rpc::DeviceMap& deviceMap,
    c10::intrusive_ptr<torch::distributed::rpc::Message>& call);

/// The context of a direct call that joinContext() has put into its envelope; unset for any other.
std::optional<ContextId> contextOfDirectForward(const torch::distributed::rpc::Message& request);

/// Serves a request that joinContext() has made: attaches a recv function to the tensors that came, has `run` serve the
/// call as part of the caller's context, and attaches a send function to the tensors that go back. `mapBack`:
/// the caller's device for each of this worker's. Throws FormatError.
c10::intrusive_ptr<torch::distributed::rpc::JitFuture> serveDirectForward(
    WorkerId caller, torch::distributed::rpc::Message& request,
    const torch::distributed::rpc::DeviceMap& mapBack,
    const std::function<c10::intrusive_ptr<torch::distributed::rpc::JitFuture>(
        torch::distributed::rpc::Message& call)>& run);

/// The body of the PYTHON_RET in a response to such a request, while that lives; unset for any other response.
std::optional<std::string_view> resultInDirectForward(
    const torch::distributed::rpc::Message& response);

/// Turns the response to such a request into the PYTHON_RET that is in it, and attaches a recv function to its tensors.
/// Leaves any other as it is. `context` is what joinContext() returned. In the state of the thread that has called.
/// Throws FormatError.
void receiveDirectForward(
    WorkerId callee, std::optional<ContextId> context,
    c10::intrusive_ptr<torch::distributed::rpc::Message>& response);

} // namespace torchwire
