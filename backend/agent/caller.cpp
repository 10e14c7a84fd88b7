// Caller: sends requests.
#include "backend/agent/caller.h"

#include <c10/util/ScopeExit.h>

#include <exception>
#include <string>
#include <tuple>
#include <utility>

#include "autograd/direct_forward.h"
#include "autograd/forward_envelope.h"
#include "backend/agent/call_end.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "cuda/error_text.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

// Whether it makes one, for certain.
bool creates(rpc::MessageType type) {
  return type == rpc::MessageType::PYTHON_REMOTE_CALL ||
      type == rpc::MessageType::SCRIPT_REMOTE_CALL;
}

// Whether the request may make an RRef: the last two wrap any call.
bool mayCreate(rpc::MessageType type) {
  return creates(type) || type == rpc::MessageType::FORWARD_AUTOGRAD_REQ ||
      type == rpc::MessageType::RUN_WITH_PROFILING_REQ;
}

} // namespace

Caller::Caller(AgentParts& parts, Bookkeeping& bookkeeping)
    : parts_(parts),
      bookkeeping_(bookkeeping),
      encoder_(parts, bookkeeping),
      completer_(parts, waiterEnds_) {
  parts_.node.calls().whenLimitedExpire([this](const CallTable::Key& call) {
    // Elsewhere than on the timer's thread: who sends may drop what is Python's.
    parts_.pools.control->run([this, call] { tellCancelled(call.to, call.id); });
  });
}

c10::intrusive_ptr<rpc::JitFuture> Caller::futureOf(at::TypePtr type) const {
  return c10::make_intrusive<JitFuture>(std::move(type), parts_.devices->used());
}

c10::intrusive_ptr<rpc::JitFuture> Caller::send(
    const WorkerInfo& to, c10::intrusive_ptr<Message> message, float rpcTimeoutSeconds,
    const rpc::DeviceMap& deviceMap) {
  OwnCall call;
  if (message->type() == rpc::MessageType::BACKWARD_AUTOGRAD_REQ) {
    std::tie(message, call.pass) = parts_.engine->gradientsRequest(std::move(message));
  }
  const rpc::MessageType type = message->type();
  call.to = to.id_;
  call.pool =
      own_messages::isEvaluation(type) ? &parts_.pools.evaluations : &parts_.pools.completions;
  call.creates = creates(typeOfCall(*message));
  call.mayCreate = mayCreate(type);
  call.context = Container::contextOf(*message);
  // Of what is sent: libtorch's message has a tensor that occurs twice only once.
  CallRequest request = encoder_.requestTo(to, std::move(message), rpcTimeoutSeconds, deviceMap);
  call.future = futureOf(at::AnyClassType::get());
  if (call.mayCreate) {
    RRefService::watchCreation(*call.future);
  }
  const auto [callId, failed] = start(call, std::move(request));
  if (call.pass) {
    if (failed) {
      parts_.node.calls().fail(callId, failed);
    }
    // Nothing for libtorch to wait for or to fail by: the pass does both, and its context may be gone by then.
    return completed(messageOf({}, own_messages::kGradientsDone));
  }
  if (failed) {
    completer_.failUnseen(call, callId, failed);
  } else if (call.creates) {
    completer_.creations().add(*call.future, callId);
  }
  return call.future;
}

Caller::Sent Caller::send(KnownCall known, Result result) {
  expectRunning(known.to, *known.request);
  OwnCall call;
  call.to = known.to.id_;
  CallRequest request =
      encoder_.requestTo(known.to, std::move(known.request), known.rpcTimeoutSeconds);
  call.isDirect = own_messages::isDirectCall(*request.message);
  call.context = encoder_.join(known.joins, request);
  call.pool = &parts_.pools.completions;
  call.future = futureOf(std::move(result.type));
  call.read = result.read;
  call.state = std::make_shared<const at::ThreadLocalState>();
  OwnCall started = call;
  started.kept = std::move(result.kept); // not by this thread, too: they go before the call is over
  const auto [callId, failed] = start(std::move(started), std::move(request));
  if (failed) {
    completer_.failUnseen(call, callId, failed);
  }
  return {call.future, callId};
}

/// Enters the call into the table, and sends its request: at once, or when its tensors have come from their devices.
RequestSender::Begun Caller::start(OwnCall call, CallRequest request) {
  const Error objection = objectionTo(call.to, *request.message);
  if (!objection) {
    return startSending(std::move(call), std::move(request));
  }
  CallTable::Options options{.timeout = request.timeout}; // not noted: it is not sent
  return {
      parts_.node.calls().open(request.to, std::move(options), completer_.begin(std::move(call))),
      objection};
}

RequestSender::Begun Caller::startSending(OwnCall call, CallRequest request) {
  const Undo undo = bookkeeping_.noteForks(request.to, *request.message);
  auto unsent = c10::make_scope_exit([&] { undo(); });
  std::optional<cuda::OutgoingTensors> tensors = encoder_.beginTensors(request);
  if (tensors && tensors->mustWait()) {
    const uint64_t callId =
        startWhenCopied(std::move(call), std::move(request), std::move(*tensors), undo);
    unsent.release();
    return {callId, Error()};
  }
  CallTable::Options options = encoder_.optionsOf(request, /* counted */ false, undo);
  EncodedRequest encoded = encoder_.encode(std::move(request), std::move(tensors), undo);
  options.tracked = encoded.counted;
  const WorkerId to = call.to;
  RequestSender::Begun begun =
      begin(to, std::move(options), std::move(encoded), completer_.begin(std::move(call)));
  unsent.release();
  undo.unlessSent(begun.failed);
  return begun;
}

RequestSender::Begun Caller::begin(
    WorkerId to, CallTable::Options options, EncodedRequest request,
    CallTable::Completion completion) {
  if (request.tensors) {
    // From now on the receiver may read a ticket; it says when the memory is free.
    request.tensors->sent();
  }
  return parts_.node.requests().begin(
      to, std::move(options), std::move(request.frame), std::move(completion));
}

uint64_t Caller::startWhenCopied(
    OwnCall call, CallRequest request, cuda::OutgoingTensors tensors, const Undo& undo) {
  const bool counted = encoder_.isCounted(request, tensors);
  CallTable::Options options = encoder_.optionsOf(request, counted, undo);
  const uint64_t callId =
      parts_.node.calls().open(request.to, std::move(options), completer_.begin(std::move(call)));
  // Not here: who sends may hold locks, and does not expect to wait for a device.
  Task task([this, callId, counted, undo, request = std::move(request),
             tensors = std::move(tensors)]() mutable {
    sendWhenCopied(callId, std::move(request), std::move(tensors), counted, undo);
  });
  if (!parts_.pools.copies->run(std::move(task))) {
    parts_.node.calls().fail(
        callId,
        Error(
            ErrorCode::shutDown,
            "worker '" + parts_.self.name_ +
                "' shuts its RPC agent down, or cannot start a thread to wait for a device",
            Executed::no));
  }
  return callId;
}

void Caller::sendWhenCopied(
    uint64_t callId, CallRequest request, cuda::OutgoingTensors tensors, bool counted,
    const Undo& undo) {
  auto neverSent = c10::make_scope_exit([&] { undo(); });
  CallTable& calls = parts_.node.calls();
  const WorkerId to = request.to;
  try {
    tensors.wait();
  } catch (const std::exception& e) {
    calls.fail(callId, Error(ErrorCode::linkBroken, encoder_.cannotCopy(e), Executed::no));
    return;
  }
  if (!calls.contains(callId)) {
    return; // it has timed out
  }
  try {
    EncodedRequest encoded = encoder_.encode(std::move(request), std::move(tensors), undo);
    setCallId(encoded.frame, callId);
    encoded.tensors->sent();
    const Error failed = parts_.node.requests().send(to, callId, std::move(encoded.frame), counted);
    neverSent.release();
    if (failed) {
      calls.fail(callId, failed);
    }
  } catch (const std::exception& e) {
    calls.fail(
        callId,
        Error(
            ErrorCode::linkBroken, "the request cannot be sent: " + cuda::reasonOf(e),
            Executed::no));
  }
}

} // namespace torchwire
