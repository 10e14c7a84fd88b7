#include "rref/creation_request.h"

#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_profiling_req.h>
#include <torch/csrc/distributed/rpc/python_remote_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <memory>

#include "autograd/forward_envelope.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using rpc::MessageType;

CreationRequest of(const rpc::PythonRemoteCall& call) {
  return {
      rpc::RRefId::fromIValue(call.retRRefId()), rpc::ForkId::fromIValue(call.retForkId()), true};
}

CreationRequest of(const rpc::ScriptRemoteCall& call) {
  return {call.retRRefId(), call.retForkId(), false};
}

bool mayCreate(MessageType type) {
  return type == MessageType::PYTHON_REMOTE_CALL || type == MessageType::SCRIPT_REMOTE_CALL ||
      type == MessageType::RUN_WITH_PROFILING_REQ;
}

std::optional<CreationRequest> creationIn(rpc::RpcCommandBase& command) {
  namespace autograd = torch::distributed::autograd;
  if (const auto* python = dynamic_cast<const rpc::PythonRemoteCall*>(&command)) {
    return of(*python);
  }
  if (const auto* script = dynamic_cast<const rpc::ScriptRemoteCall*>(&command)) {
    return of(*script);
  }
  if (auto* forward = dynamic_cast<autograd::RpcWithAutograd*>(&command)) {
    return creationIn(forward->wrappedRpc());
  }
  if (auto* profiled = dynamic_cast<autograd::RpcWithProfilingReq*>(&command)) {
    return creationIn(profiled->wrappedRpc());
  }
  return std::nullopt;
}

} // namespace

std::optional<CreationRequest> creationIn(const rpc::Message& request) {
  if (!mayCreate(typeOfCall(request))) {
    return std::nullopt;
  }
  return creationIn(*rpc::deserializeRequest(request));
}

} // namespace torchwire
