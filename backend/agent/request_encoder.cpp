#include "backend/agent/request_encoder.h"

#include <torch/csrc/distributed/autograd/context/container.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "backend/agent/seconds.h"
#include "backend/codec/codec.h"
#include "backend/serve/request_label.h"
#include "cuda/error_text.h"
#include "cuda/host_copies.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;
using torch::distributed::autograd::DistAutogradContainer;

namespace {

size_t bytesOf(const rpc::Message& request) {
  size_t bytes = request.payload().size();
  for (const at::Tensor& tensor : request.tensors()) {
    bytes += tensor.defined() && tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
  }
  return bytes;
}

} // namespace

milliseconds RequestEncoder::timeoutOf(float seconds) const {
  const milliseconds given =
      seconds == rpc::kUnsetRpcTimeout ? parts_.rpcTimeout() : fromSeconds(seconds);
  const auto left = CallDeadline::left();
  if (!left) { // as nearly always
    return given;
  }
  return given == milliseconds(0) ? *left : std::min(given, *left);
}

CallRequest RequestEncoder::requestTo(
    const rpc::WorkerInfo& to, c10::intrusive_ptr<rpc::Message> message, float rpcTimeoutSeconds,
    const rpc::DeviceMap& given) const {
  // libtorch gives gradients an empty map both where the way back leads nowhere and where it is the forward one. The latter
  // is taken for both; the receiver puts gradients where their tensors are (engine_service.cpp).
  TensorDevices targets;
  try {
    targets = parts_.devices->targets(
        to.id_, cuda::Direction::request, message->tensors(), given.empty() ? nullptr : &given);
  } catch (const std::exception&) {
    bookkeeping_.noteForks(to.id_, *message)();
    throw;
  }
  return {
      to.id_, std::move(message), std::move(targets), timeoutOf(rpcTimeoutSeconds),
      CallDeadline::get()};
}

std::optional<ContextId> RequestEncoder::join(JoinsContext joins, CallRequest& request) const {
  if (joins == JoinsContext::never || !DistAutogradContainer::getInstance().hasValidContext()) {
    return std::nullopt;
  }
  const auto alone = request.message; // without the context
  try {
    return joinContext(
        request.to, joins, parts_.devices->mapTo(request.to, cuda::Direction::request),
        request.message);
  } catch (const std::exception&) { // the context has been released
    bookkeeping_.noteForks(request.to, *alone)();
    throw;
  }
}

CallTable::Options RequestEncoder::optionsOf(
    const CallRequest& request, bool counted, const Undo& undo) const {
  return {
      .timeout = request.timeout,
      .tracked = counted,
      .limited = request.deadline.has_value(),
      .function = &parts_.metrics->functions.find(LabelledRequest(*request.message).label()),
      .undo = undo};
}

std::optional<cuda::OutgoingTensors> RequestEncoder::beginTensors(CallRequest& request) const {
  const auto& tensors = std::as_const(*request.message).tensors();
  if (!cuda::HostCopies::areNeeded(tensors)) {
    return std::nullopt;
  }
  return parts_.transfers->begin(request.to, tensors, std::move(request.targets));
}

EncodedRequest RequestEncoder::encode(
    CallRequest request, std::optional<cuda::OutgoingTensors> tensors, const Undo& undo) const {
  EncodedRequest encoded;
  TensorTargets targets{std::move(request.targets), {}};
  if (tensors) {
    try {
      request.message->tensors() = tensors->take();
    } catch (const std::exception& e) {
      throw std::runtime_error(cannotCopy(e));
    }
    targets = tensors->targets();
  }
  encoded.frame = encodeMessage(
      FrameKind::request, std::move(request.message), parts_.disposer, std::move(targets));
  encoded.frame.undo = undo;
  if (request.deadline) {
    setTimeLeft(encoded.frame, CallDeadline::until(*request.deadline));
  }
  encoded.counted = isCounted(tensors ? &*tensors : nullptr, encoded.frame.bytes());
  if (tensors) {
    encoded.tensors.emplace(std::move(*tensors));
  }
  return encoded;
}

bool RequestEncoder::isCounted(
    const CallRequest& request, const cuda::OutgoingTensors& tensors) const {
  return isCounted(&tensors, bytesOf(*request.message));
}

/// What tickets stand for has a bound of its own; and a request that waited for room could end without being sent, of which
/// the worker that has lent memory for it would not learn.
bool RequestEncoder::isCounted(const cuda::OutgoingTensors* tensors, size_t bytes) const {
  return !(tensors != nullptr && tensors->hasTickets()) && parts_.node.requests().isCounted(bytes);
}

std::string RequestEncoder::cannotCopy(const std::exception& ofDevice) const {
  return "worker '" + parts_.self.name_ +
      "' cannot copy a tensor from its device: " + cuda::reasonOf(ofDevice) +
      ". If the device is lost, restart the worker";
}

} // namespace torchwire
