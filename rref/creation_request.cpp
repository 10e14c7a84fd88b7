#include "rref/creation_request.h"

#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/rpc/python_remote_call.h>
#include <torch/csrc/distributed/rpc/script_remote_call.h>

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

template <typename Call>
CreationRequest readAs(const rpc::Message& request) {
  if (request.type() != MessageType::FORWARD_AUTOGRAD_REQ) {
    return of(*Call::fromMessage(request));
  }
  const auto envelope = torch::distributed::autograd::RpcWithAutograd::fromMessage(request);
  return of(dynamic_cast<const Call&>(envelope->wrappedRpc()));
}

} // namespace

std::optional<CreationRequest> creationIn(const rpc::Message& request) {
  switch (typeOfCall(request)) {
    case MessageType::PYTHON_REMOTE_CALL:
      return readAs<rpc::PythonRemoteCall>(request);
    case MessageType::SCRIPT_REMOTE_CALL:
      return readAs<rpc::ScriptRemoteCall>(request);
    default:
      return std::nullopt;
  }
}

} // namespace torchwire
