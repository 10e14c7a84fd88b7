#include "autograd/direct_forward.h"
#include "autograd/context_lifetime.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/utils.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "autograd/current_context.h"
#include "backend/base/bytes.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
namespace autograd = torch::distributed::autograd;
using autograd::AutogradMetadata;
using autograd::ContextPtr;
using autograd::DistAutogradContainer;
using own_messages::direct_body::kForward;
using rpc::JitFuture;
using rpc::Message;
using rpc::MessageType;

constexpr size_t kEnvelope = 1 + 2 * sizeof(int64_t);

bool isEnveloped(const Message& message, MessageType type) {
  const auto& body = message.payload();
  return message.type() == type && !body.empty() && body.front() == kForward;
}

AutogradMetadata metadataOf(const Message& message) {
  const auto& body = message.payload();
  ByteReader in(body.data() + 1, body.size() - 1);
  const auto context = in.number<int64_t>();
  return {context, in.number<int64_t>()};
}

c10::intrusive_ptr<Message> rewritten(Message& from, std::vector<char> body, MessageType type) {
  return c10::make_intrusive<Message>(std::move(body), std::move(from.tensors()), type);
}

/// The message in an envelope. Attaches a send function to tensors that need gradients.
c10::intrusive_ptr<Message> enveloped(
    Message& message, const ContextPtr& context, bool needsGradients, MessageType type) {
  const AutogradMetadata metadata(
      context->contextId(), DistAutogradContainer::getInstance().newAutogradMessageId());
  if (needsGradients) {
    autograd::addSendRpcBackward(context, metadata, message.tensors());
  }
  const auto& inner = std::as_const(message).payload();
  std::vector<char> body;
  body.reserve(kEnvelope + inner.size());
  ByteWriter out(body);
  out.number(kForward);
  out.number(metadata.autogradContextId);
  out.number(metadata.autogradMessageId);
  out.raw(inner.data(), inner.size());
  return rewritten(message, std::move(body), type);
}

c10::intrusive_ptr<Message> unwrapped(Message& message, MessageType type) {
  const auto& body = std::as_const(message).payload();
  return rewritten(message, std::vector<char>(body.begin() + kEnvelope, body.end()), type);
}

/// The response as it goes back to the caller.
c10::intrusive_ptr<Message> answered(
    WorkerId caller, const ContextPtr& context, c10::intrusive_ptr<Message> response) {
  if (!torch::autograd::compute_requires_grad(response->tensors())) {
    return response;
  }
  context->addKnownWorkerId(caller);
  return enveloped(*response, context, true, MessageType::FORWARD_AUTOGRAD_RESP);
}

} // namespace

std::optional<ContextId> joinContext(
    WorkerId callee, JoinsContext joins, const rpc::DeviceMap& deviceMap,
    c10::intrusive_ptr<Message>& call) {
  if (joins == JoinsContext::withGradients &&
      !torch::autograd::compute_requires_grad(call->tensors())) {
    return std::nullopt;
  }
  const ContextId id = DistAutogradContainer::currentContextId();
  expectOfThisLifetime(id);
  if (!own_messages::isDirectCall(*call)) {
    call = autograd::getMessageWithAutograd(
        static_cast<rpc::worker_id_t>(callee), call, MessageType::FORWARD_AUTOGRAD_REQ,
        /* forceGradRecording */ true, deviceMap);
    return id;
  }
  const ContextPtr context = DistAutogradContainer::getInstance().currentContext();
  call = enveloped(
      *call, context, torch::autograd::compute_requires_grad(call->tensors()),
      MessageType::FORWARD_AUTOGRAD_REQ);
  context->addKnownWorkerId(callee);
  return id;
}

std::optional<ContextId> contextOfDirectForward(const Message& request) {
  return isEnveloped(request, MessageType::FORWARD_AUTOGRAD_REQ)
      ? std::optional<ContextId>(metadataOf(request).autogradContextId)
      : std::nullopt;
}

c10::intrusive_ptr<JitFuture> serveDirectForward(
    WorkerId caller, Message& request, const rpc::DeviceMap& mapBack,
    const std::function<c10::intrusive_ptr<JitFuture>(Message& call)>& run) {
  const AutogradMetadata metadata = metadataOf(request);
  const auto call = unwrapped(request, MessageType::PYTHON_CALL);
  if (!own_messages::isDirectCall(*call)) {
    throw FormatError("a call in an autograd context holds no direct call");
  }
  const ContextPtr context =
      autograd::addRecvRpcBackward(metadata, call->tensors(), caller, mapBack);
  // Calls that the function makes belong to the context too.
  const CurrentContext whileItRuns(context->contextId());
  return run(*call)->then(
      [caller, context](JitFuture& done) {
        if (done.hasError()) {
          std::rethrow_exception(done.exception_ptr());
        }
        return withDeviceStorages(answered(caller, context, done.value().toCustomClass<Message>()));
      },
      messageType());
}

std::optional<std::string_view> resultInDirectForward(const Message& response) {
  if (!isEnveloped(response, MessageType::FORWARD_AUTOGRAD_RESP)) {
    return std::nullopt;
  }
  const auto& body = response.payload();
  return std::string_view(body.data(), body.size()).substr(std::min(kEnvelope, body.size()));
}

void receiveDirectForward(
    WorkerId callee, std::optional<ContextId> context, c10::intrusive_ptr<Message>& response) {
  if (!isEnveloped(*response, MessageType::FORWARD_AUTOGRAD_RESP)) {
    return;
  }
  const AutogradMetadata metadata = metadataOf(*response);
  if (metadata.autogradContextId != context) {
    throw FormatError("cannot read the response: it is part of another autograd context");
  }
  response = unwrapped(*response, MessageType::PYTHON_RET);
  // Gradients go as requests do, for which there is a map.
  autograd::addRecvRpcBackward(metadata, response->tensors(), callee, /* deviceMap */ {});
}

} // namespace torchwire
