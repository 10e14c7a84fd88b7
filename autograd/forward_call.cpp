#include "autograd/forward_call.h"

#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>
#include <torch/csrc/distributed/autograd/utils.h>

#include <exception>
#include <utility>

#include "autograd/current_context.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
namespace autograd = torch::distributed::autograd;

/// Gradients travel against the direction of the call, so its device map is read backwards.
rpc::DeviceMap reversed(const rpc::DeviceMap& map) {
  rpc::DeviceMap result;
  for (const auto& [from, to] : map) {
    result.insert({to, from});
  }
  return result;
}

} // namespace

c10::intrusive_ptr<rpc::JitFuture> forwardCall(
    const Dispatcher& dispatcher, WorkerId caller, rpc::RpcCommandBase& command) {
  auto& call = static_cast<autograd::RpcWithAutograd&>(command);
  const autograd::ContextPtr context = autograd::addRecvRpcBackward(
      call.autogradMetadata(), call.tensors(), call.fromWorkerId(), reversed(call.deviceMap()));
  TORCH_INTERNAL_ASSERT(context != nullptr, "a call with an autograd context opens or finds one");

  const int64_t contextId = context->contextId();
  const CurrentContext whileItRuns(
      contextId); // calls that the function makes belong to the context too
  auto wrapped = dispatcher.run(caller, call.wrappedRpc(), call.wrappedMessageType());
  return wrapped->then(
      [to = call.fromWorkerId(), contextId](rpc::JitFuture& done) {
        const CurrentContext whileItAnswers(contextId); // an async function ends on any thread
        if (done.hasError()) {
          std::rethrow_exception(done.exception_ptr());
        }
        return withDeviceStorages(
            autograd::getMessageWithAutograd(
                to, done.value().toCustomClass<rpc::Message>(),
                rpc::MessageType::FORWARD_AUTOGRAD_RESP));
      },
      messageType());
}

} // namespace torchwire
