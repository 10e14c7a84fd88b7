// Caller: on the thread that calls, and perhaps waits.
#include <ATen/ThreadLocalState.h>
#include <c10/util/ScopeExit.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "autograd/direct_forward.h"
#include "backend/agent/call_end.h"
#include "backend/agent/caller.h"
#include "backend/base/bytes.h"
#include "backend/base/call_error.h"
#include "backend/base/guarded.h"
#include "backend/serve/answer_scope.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/signals.h"
#include "backend/transport/loop.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

Error ownerDied(const std::string& worker) {
  return Error(
      ErrorCode::workerDied,
      worker +
          " is another process than the RRef's owner, which has died or left: create the RRef anew",
      Executed::no);
}

} // namespace

// ---- whether a thread may send ------------------------------------------------------------------

void Caller::expectRunning(const WorkerInfo& to, const Message& message) const {
  parts_.expectOwnProcess();
  TORCH_CHECK(message.isRequest(), "Agent::send(..) is only for sending requests.");
  const auto& links = parts_.node.links();
  if (parts_.isRunning.load() && links) {
    return;
  }
  const std::string reason = links ? links->ownGoodbye().reason : "";
  const Error error(
      ErrorCode::shutDown,
      c10::str(
          "worker '", parts_.self.name_, "' tried to send() a message of type ", message.type(),
          " to '", to.name_, "' but RPC is no longer running on this node",
          reason.empty() ? "" : ": " + reason, "."),
      Executed::no);
  throw CallError(error.to(to.name_));
}

/// Why a request is not to be sent; else the link says what has become of the worker.
Error Caller::objectionTo(WorkerId to, const Message& request) const {
  const bool isLost = parts_.rrefs->asksForOrphan(request) && parts_.node.links()->statusOf(to);
  return isLost ? ownerDied(parts_.directory.describe(to)) : Error();
}

// ---- waiting ------------------------------------------------------------------------------------

void Caller::call(
    KnownCall known, const std::function<void(c10::intrusive_ptr<Message> response)>& use) {
  const WorkerInfo& to = known.to;
  expectRunning(to, *known.request);
  if (const Error objection = objectionTo(to.id_, *known.request)) {
    throw CallError(objection.to(to.name_));
  }
  CallRequest request = encoder_.requestTo(to, std::move(known.request), known.rpcTimeoutSeconds);
  const bool isDirect = own_messages::isDirectCall(*request.message);
  const CallTarget target{to.id_, encoder_.join(known.joins, request), isDirect};
  CallTable::Options options = encoder_.optionsOf(request, /* counted */ false, {});
  EncodedRequest encoded = encodeInTime(to, std::move(request));
  options.undo = encoded.frame.undo;
  // Until the response has been used, which may start further calls: RRefs in it tell their owners.
  parts_.activeCalls.start();
  const auto finished = c10::make_scope_exit([&] { completer_.ended(target); });
  const WaiterEnds::Scope waits;
  Outcome outcome = outcomeOf(to.id_, std::move(options), std::move(encoded));
  if (outcome.error) {
    outcome.error = completer_.unanswered(target, outcome.error);
  }
  const auto ended = c10::make_scope_exit([this] { waiterEnds_.end(); });
  c10::intrusive_ptr<Message> response;
  {
    std::optional<at::ThreadLocalStateGuard> restoredAfterwards;
    if (carriesTensors(outcome.response)) {
      // As in CallCompleter::complete(); it costs more than all else here.
      restoredAfterwards.emplace(freshState());
    }
    response = completer_.placed(
        to.id_, responseIn(std::move(outcome), /* mayCreate */ false, /* creates */ false));
  }
  const TraceLog::Reading reading(parts_.metrics->trace, to.id_, response->id());
  if (isDirect) {
    receiveDirectForward(to.id_, target.context, response);
  }
  const AnswerScope answer(to.id_);
  use(std::move(response));
}

/// Throws if a wait for devices has taken too long, too.
EncodedRequest Caller::encodeInTime(const WorkerInfo& to, CallRequest request) {
  const Undo undo = bookkeeping_.noteForks(to.id_, *request.message);
  auto unsent = c10::make_scope_exit([&] { undo(); });
  const auto begun = std::chrono::steady_clock::now();
  const std::chrono::milliseconds timeout = request.timeout;
  auto tensors = encoder_.beginTensors(request);
  EncodedRequest encoded = encoder_.encode(std::move(request), std::move(tensors), undo);
  if (encoded.tensors) {
    expectTimeLeft(to.name_, timeout, begun);
  }
  unsent.release();
  return encoded;
}

/// Sends the request of a call and waits until the call has ended, which then counts in waiterEnds_.
Outcome Caller::outcomeOf(WorkerId to, CallTable::Options options, EncodedRequest request) {
  const auto waiter = std::make_shared<Waiter>();
  const auto result = std::make_shared<Outcome>();
  options.tracked = request.counted;
  const auto [callId, failed] =
      begin(to, std::move(options), std::move(request), [this, waiter, result](Outcome outcome) {
        waiterEnds_.begin();
        *result = std::move(outcome);
        waiter->give([] {});
      });
  if (failed) {
    parts_.node.calls().fail(callId, failed);
  }
  awaitEnd(*waiter, callId);
  return std::move(*result);
}

void Caller::await(uint64_t callId, const std::function<bool()>& hasCallbacks) {
  parts_.expectOwnProcess();
  const auto waiter = std::make_shared<Waiter>();
  if (!parts_.node.calls().await(callId, waiter)) {
    return;
  }
  const WaiterEnds::Scope waits;
  Task end = awaitEnd(*waiter, callId);
  if (hasCallbacks()) {
    parts_.pools.endOn(parts_.pools.completions, std::move(end));
  } else {
    guarded("the end of a call", end);
    end = Task();
  }
  waiterEnds_.end();
}

/// On the thread that handles signals the call is cancelled when a handler raises.
Task Caller::awaitEnd(Waiter& waiter, uint64_t callId) {
  if (!handlesSignals()) {
    return waiter.await(parts_.loop.get());
  }
  return waiter.await(parts_.loop.get(), [this, callId] {
    if (runSignalHandlers()) {
      cancel(callId);
    }
  });
}

// ---- cancelling ---------------------------------------------------------------------------------

bool Caller::cancel(uint64_t callId) {
  parts_.expectOwnProcess();
  const auto given = parts_.node.calls().giveUp(
      callId,
      Error(ErrorCode::cancelled, "the call was cancelled by worker '" + parts_.self.name_ + "'"));
  if (given.tell) {
    tellCancelled(*given.tell, callId);
  }
  return given.ended;
}

/// Counts as active until the callee has noted it: functions that are to see it run there as long as the group does.
void Caller::tellCancelled(WorkerId to, uint64_t callId) {
  guarded("telling a worker of a cancelled call", [&] {
    parts_.activeCalls.start();
    const std::shared_ptr<void> active(this, [this](void*) { parts_.activeCalls.finish(); });
    OwnCalls::Body body;
    ByteWriter(body).number(callId);
    parts_.node.ownCalls().open(
        to, own_requests::kCancel, std::move(body), parts_.rpcTimeout(),
        [active](const OwnCalls::Answer&) {});
  });
}

} // namespace torchwire
