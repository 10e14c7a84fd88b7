// Agent: calls of this worker, from the message to its answer.
#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <future>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/agent/seconds.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/base/thread_role.h"
#include "backend/codec/codec.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "backend/transport/loop.h"
#include "cuda/devices.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

// A call that its thread is sending. What fails it meanwhile, on this thread, waits until the links have been left.
class Sending {
 public:
  explicit Sending(uint64_t id) : callId(id), outer_(std::exchange(current, this)) {}
  ~Sending() {
    current = outer_;
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  static thread_local Sending* current;
  const uint64_t callId;
  Error failed;

 private:
  Sending* const outer_;
};
thread_local Sending* Sending::current = nullptr;

thread_local Agent::SentCalls sentCalls;
thread_local int endingHere = 0; // calls that the thread has waited for

/// The state of a thread on which nothing has been set.
const at::ThreadLocalState& freshState() {
  static const at::ThreadLocalState state =
      std::async(std::launch::async, [] { return at::ThreadLocalState(); }).get();
  return state;
}

bool hasFailed(const Outcome& outcome) {
  return outcome.error ||
      outcome.response.header.messageType == static_cast<uint32_t>(rpc::MessageType::EXCEPTION);
}

// Whether the request may make an RRef: FORWARD_AUTOGRAD_REQ wraps any call.
bool mayCreate(rpc::MessageType type) {
  return type == rpc::MessageType::PYTHON_REMOTE_CALL ||
      type == rpc::MessageType::SCRIPT_REMOTE_CALL ||
      type == rpc::MessageType::FORWARD_AUTOGRAD_REQ;
}

// Only by the type of an error libtorch knows that an RRef may never come to be. At any other its callback throws, the
// RRef stays a pending user, and shutdown waits for it for ever.
std::exception_ptr toException(const Error& error, bool mayCreate) {
  const bool typed = error.message().starts_with("RPCErr:"); // as makeRPCError begins
  const bool timedOut = error.code() == ErrorCode::timeout || (mayCreate && !typed);
  return std::make_exception_ptr(
      std::runtime_error(
          timedOut ? rpc::makeRPCError(error.message(), rpc::RPCErrorType::TIMEOUT)
                   : error.message()));
}

void finish(rpc::JitFuture& future, bool mayCreate, Outcome outcome) {
  if (outcome.error) {
    future.setError(toException(outcome.error, mayCreate));
    return;
  }
  c10::intrusive_ptr<rpc::Message> message;
  try {
    message = decodeMessage(std::move(outcome.response));
  } catch (const std::exception& e) {
    future.setError(
        std::make_exception_ptr(
            std::runtime_error(std::string("cannot read the response: ") + e.what())));
    return;
  }
  if (message->type() == rpc::MessageType::EXCEPTION) {
    const auto& text = std::as_const(*message).payload();
    future.setError(
        std::make_exception_ptr(std::runtime_error(std::string(text.begin(), text.end()))));
  } else {
    complete(future, std::move(message));
  }
}

} // namespace

c10::intrusive_ptr<rpc::JitFuture> Agent::send(
    const WorkerInfo& to, c10::intrusive_ptr<Message> message, const float rpcTimeoutSeconds,
    const rpc::DeviceMap& deviceMap) {
  TORCH_CHECK(message->isRequest(), "Agent::send(..) is only for sending requests.");
  TORCH_CHECK(
      rpcAgentRunning_.load() && links_, "worker '", workerInfo_.name_,
      "' tried to send() a message of type ", message->type(), " to '", to.name_,
      "' but RPC is no longer running on this node.");
  TORCH_CHECK(
      deviceMap.empty(),
      "this version of torchwire sends CPU tensors only; call without a device map");
  cuda::refuseCudaTensors(std::as_const(*message).tensors(), "Request");

  std::shared_ptr<Pass> pass; // that has to wait for the answer
  if (message->type() == rpc::MessageType::BACKWARD_AUTOGRAD_REQ) {
    std::tie(message, pass) = engine_->gradientsRequest(std::move(message));
  }
  OwnCall call;
  call.to = to.id_;
  call.mayCreate = mayCreate(message->type());
  call.context = Container::contextOf(*message);
  call.future = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
  OutgoingFrame frame = encodeMessage(FrameKind::request, std::move(message), disposer_);
  const milliseconds timeout =
      rpcTimeoutSeconds == rpc::kUnsetRpcTimeout ? getRpcTimeout() : fromSeconds(rpcTimeoutSeconds);
  if (call.mayCreate) {
    RRefService::watchCreation(*call.future);
  }
  activeCalls_.start();
  const uint64_t callId = calls_->open(to.id_, timeout, [this, call](Outcome outcome) mutable {
    complete(std::move(call), std::move(outcome));
  });
  setCallId(frame, callId);
  ++sentCalls.count;
  sentCalls.latest = callId;
  if (pass) {
    TorchEngine::track(pass, call.future);
  }
  const Error failed = transmit(to.id_, callId, std::move(frame));
  if (pass) {
    if (failed) {
      calls_->fail(callId, failed);
    }
    // Nothing for libtorch to wait for or to fail by: the pass does both, and its context may be gone by then.
    return completed(messageOf({}, own_messages::kGradientsDone));
  }
  if (failed) {
    failUnseen(call, callId, failed);
  }
  return call.future;
}

/// Hands the frame to the links. What fails at once is returned, what fails later fails the call.
Error Agent::transmit(WorkerId to, uint64_t callId, OutgoingFrame frame) {
  Sending now(callId);
  const SendScope
      scope; // libtorch or Python may call with locks held: nothing of theirs may be waited for in here
  links_->send(to, std::move(frame), [this, callId](const Error& error) {
    if (error) {
      sendFailed(callId, error);
    }
  });
  return now.failed;
}

void Agent::sendFailed(uint64_t callId, const Error& error) {
  Sending* const now = Sending::current;
  if (now != nullptr && now->callId == callId) {
    now->failed = error;
  } else {
    calls_->fail(callId, error);
  }
}

// Who gets the future can see that the call has failed, as on PyTorch's faulty backend. Nobody has it yet, so that no
// callback runs but that of watchCreation, which only marks an RRef.
void Agent::failUnseen(const OwnCall& call, uint64_t callId, const Error& error) {
  if (!calls_->withdraw(callId)) {
    return; // it has ended meanwhile in another way
  }
  finish(*call.future, call.mayCreate, {error, {}, nullptr});
  endOnPool([this, call] { callEnded(call); });
}

const Agent::SentCalls& Agent::sentByThisThread() {
  return sentCalls;
}

void Agent::await(uint64_t callId, const std::function<bool()>& hasCallbacks) {
  const auto waiter = std::make_shared<Waiter>();
  if (!calls_->await(callId, waiter)) {
    return;
  }
  Task end = waiter->await(loop_.get());
  if (hasCallbacks()) {
    endOnPool(std::move(end));
  } else {
    ++endingHere;
    guarded("the end of a call", end);
    end = Task();
    --endingHere;
  }
  --endingOnWaiters_;
  endingOnWaiters_.notify_all();
}

void Agent::endOnPool(Task task) {
  if (!completions_.run(std::move(task))) {
    task(); // a call that slipped in while the agent shut down: its future must not stay open
  }
}

/// Returns when no thread ends a call that it has waited for, but for this one.
void Agent::waitForWaiters() {
  for (int ending = endingOnWaiters_; ending > endingHere; ending = endingOnWaiters_) {
    endingOnWaiters_.wait(ending);
  }
}

// Completing a future runs the user's callbacks, so it happens on a thread that may block: the one that waits for it, or
// one of the pool's.
void Agent::complete(OwnCall call, Outcome outcome) {
  const std::shared_ptr<Waiter> waiter = std::move(outcome.waiter);
  Task task([this, call = std::move(call), outcome = std::move(outcome)]() mutable {
    // Not the state of a thread that waits (a mode in which results would be other tensors); and what a user's callback
    // leaves in it is not for the next one.
    const at::ThreadLocalStateGuard restoredAfterwards{freshState()};
    finishCall(call, std::move(outcome));
    callEnded(call);
  });
  if (waiter) {
    ++endingOnWaiters_;
    waiter->give(std::move(task));
  } else {
    endOnPool(std::move(task));
  }
}

void Agent::finishCall(const OwnCall& call, Outcome outcome) {
  expectFree("completing the future of a call");
  try {
    if (call.to == self_ && call.mayCreate && hasFailed(outcome)) {
      RRefService::failOwnCreation(
          *call.future, [&] { finish(*call.future, call.mayCreate, std::move(outcome)); });
    } else {
      finish(*call.future, call.mayCreate, std::move(outcome));
    }
  } catch (const std::exception&
               e) { // libtorch's callbacks for RRefs throw at most errors; the call is over
    log(LogLevel::warning,
        "a callback of a call to " + directory_.describe(call.to) + " raised: " + e.what());
  }
}

void Agent::callEnded(const OwnCall& call) {
  if (call.context) {
    // After the callbacks, because it is there that libtorch reads a response and opens its context, be it anew.
    contexts_.ownCallEnded(*call.context, call.to);
  }
  activeCalls_.finish(); // after the callbacks, which may have started further calls
}

} // namespace torchwire
