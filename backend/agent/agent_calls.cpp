// Agent: calls of this worker, from the message to its answer.
#include <ATen/ThreadLocalState.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "autograd/direct_forward.h"
#include "autograd/forward_envelope.h"
#include "backend/agent/agent.h"
#include "backend/agent/call_end.h"
#include "backend/agent/forked_agent.h"
#include "backend/agent/seconds.h"
#include "backend/base/bytes.h"
#include "backend/base/call_error.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/base/thread_role.h"
#include "backend/codec/codec.h"
#include "backend/serve/answer_scope.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/request_label.h"
#include "backend/serve/response.h"
#include "backend/serve/signals.h"
#include "backend/transport/loop.h"
#include "backend/wire/own_requests.h"
#include "cuda/error_text.h"
#include "cuda/host_copies.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

thread_local Agent::SentCalls sentCalls;
thread_local Agent::AwaitingSend* awaiting = nullptr; // that has no call yet
thread_local int endingHere = 0; // calls that the thread waits for, or has waited for

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

// Whether a request is what a thread may wait for: not one that keeps the books of RRefs, which is also sent for an RRef
// that is dropped along the way, with locks held.
bool isAwaitable(rpc::MessageType type) {
  return type == rpc::MessageType::SCRIPT_CALL || type == rpc::MessageType::PYTHON_CALL ||
      type == rpc::MessageType::SCRIPT_RREF_FETCH_CALL ||
      type == rpc::MessageType::PYTHON_RREF_FETCH_CALL ||
      type == rpc::MessageType::RREF_BACKWARD_REQ ||
      type == rpc::MessageType::FORWARD_AUTOGRAD_REQ ||
      type == rpc::MessageType::RUN_WITH_PROFILING_REQ;
}

Error ownerDied(const std::string& worker) {
  return Error(
      ErrorCode::workerDied,
      worker +
          " is another process than the RRef's owner, which has died or left: create the RRef anew",
      Executed::no);
}

void noteDeadline(OutgoingFrame& request) {
  if (const auto left = CallDeadline::left()) {
    setTimeLeft(request, *left);
  }
}

size_t bytesOf(const rpc::Message& request) {
  size_t bytes = request.payload().size();
  for (const at::Tensor& tensor : request.tensors()) {
    bytes += tensor.defined() && tensor.layout() == at::kStrided ? tensor.nbytes() : 0;
  }
  return bytes;
}

} // namespace

Agent::AwaitingSend::AwaitingSend(std::shared_ptr<Agent> agent)
    : agent_(std::move(agent)), outer_(std::exchange(awaiting, agent_ ? this : nullptr)) {}

Agent::AwaitingSend::~AwaitingSend() {
  awaiting = outer_;
}

/// The scope that waits for a request of this type, if there is one: for no further request.
Agent::AwaitingSend* Agent::takeAwaiting(rpc::MessageType type) {
  if (awaiting == nullptr || awaiting->agent_.get() != this || !isAwaitable(type)) {
    return nullptr;
  }
  return std::exchange(awaiting, nullptr);
}

/// By those who have kept the agent, or the future of a call of its; others find a ForkedAgent in its place.
void Agent::expectOwnProcess() const {
  if (isInherited()) {
    throw std::runtime_error(ForkedAgent(workerInfo_).refusal());
  }
}

std::string Agent::describeReasonToLeave() const {
  const std::string reason = node_.links() ? node_.links()->ownGoodbye().reason : "";
  return reason.empty() ? "" : ": " + reason;
}

void Agent::checkCanSend(const WorkerInfo& to, const Message& message) const {
  expectOwnProcess();
  TORCH_CHECK(message.isRequest(), "Agent::send(..) is only for sending requests.");
  if (rpcAgentRunning_.load() && node_.links()) {
    return;
  }
  const Error error(
      ErrorCode::shutDown,
      c10::str(
          "worker '", workerInfo_.name_, "' tried to send() a message of type ", message.type(),
          " to '", to.name_, "' but RPC is no longer running on this node", describeReasonToLeave(),
          "."),
      Executed::no);
  throw CallError(error.to(to.name_));
}

/// Throws c10::Error for a tensor on a device that no map leads on from.
TensorDevices Agent::targetsOf(
    const WorkerInfo& to, const Message& request, const rpc::DeviceMap& given) {
  // libtorch gives gradients an empty one both where the way back leads nowhere and where it is the forward one. The latter
  // is taken for both; the receiver puts gradients where their tensors are (engine_service.cpp).
  try {
    return devices_->targets(
        to.id_, cuda::Direction::request, request.tensors(), given.empty() ? nullptr : &given);
  } catch (const std::exception&) {
    noteForks(to.id_, request)();
    throw;
  }
}

c10::intrusive_ptr<rpc::JitFuture> Agent::futureOf(at::TypePtr type) const {
  return c10::make_intrusive<JitFuture>(std::move(type), devices_->used());
}

milliseconds Agent::timeoutOf(float seconds) const {
  const milliseconds given =
      seconds == rpc::kUnsetRpcTimeout ? getRpcTimeout() : fromSeconds(seconds);
  const auto left = CallDeadline::left();
  if (!left) { // as nearly always
    return given;
  }
  return given == milliseconds(0) ? *left : std::min(given, *left);
}

c10::intrusive_ptr<rpc::JitFuture> Agent::send(
    const WorkerInfo& to, c10::intrusive_ptr<Message> message, const float rpcTimeoutSeconds,
    const rpc::DeviceMap& deviceMap) {
  checkCanSend(to, *message);
  if (keepsBooks(message->type())) {
    return sendBookkeeping(to.id_, std::move(message));
  }
  OwnCall call;
  if (message->type() == rpc::MessageType::BACKWARD_AUTOGRAD_REQ) {
    std::tie(message, call.pass) = engine_->gradientsRequest(std::move(message));
  }
  // Of what is sent: libtorch's message has a tensor that occurs twice only once.
  TensorDevices targets = targetsOf(to, *message, deviceMap);
  AwaitingSend* const waits = takeAwaiting(message->type());
  call.to = to.id_;
  call.pool = own_messages::isEvaluation(message->type()) ? &evaluations_ : &completions_;
  call.creates = creates(typeOfCall(*message));
  call.mayCreate = mayCreate(message->type());
  call.context = Container::contextOf(*message);
  call.future = futureOf(at::AnyClassType::get());
  if (call.mayCreate) {
    RRefService::watchCreation(*call.future);
  }
  if (waits != nullptr) {
    waits->inUse_ = call.inUse = use(call);
  }
  const auto [callId, failed] =
      start(call, std::move(message), std::move(targets), rpcTimeoutSeconds);
  if (call.pass) {
    if (failed) {
      node_.calls().fail(callId, failed);
    }
    // Nothing for libtorch to wait for or to fail by: the pass does both, and its context may be gone by then.
    return completed(messageOf({}, own_messages::kGradientsDone));
  }
  if (failed) {
    failUnseen(call, callId, failed);
  } else if (waits != nullptr) {
    await(callId, [] { return false; });
  }
  return call.future;
}

c10::intrusive_ptr<rpc::JitFuture> Agent::send(
    const WorkerInfo& to, c10::intrusive_ptr<Message> request, float rpcTimeoutSeconds,
    ReadResult read, std::shared_ptr<KeptRRefs> kept) {
  checkCanSend(to, *request);
  TensorDevices targets = targetsOf(to, *request);
  OwnCall call;
  call.to = to.id_;
  call.context = joinContext(to.id_, request);
  call.pool = &completions_;
  call.future = futureOf(at::PyObjectType::get());
  call.read = read;
  call.state = std::make_shared<const at::ThreadLocalState>();
  OwnCall opened = call;
  opened.kept = std::move(kept); // not by this thread, too: they go before the call is over
  const auto [callId, failed] =
      start(std::move(opened), std::move(request), std::move(targets), rpcTimeoutSeconds);
  if (failed) {
    failUnseen(call, callId, failed);
  }
  return call.future;
}

/// Enters the call into the table and sends its request: at once, or when its tensors have come from their devices.
Agent::SentCall Agent::start(
    OwnCall call, c10::intrusive_ptr<Message> request, TensorDevices targets,
    float rpcTimeoutSeconds) {
  if (rrefs_->asksForOrphan(*request) &&
      node_.links()->statusOf(call.to)) { // else the link says what has become of it
    const Error error = ownerDied(directory_.describe(call.to));
    return {open(std::move(call), rpcTimeoutSeconds, /* counted */ false), error};
  }
  call.function = &metricsOf(*request);
  call.undo = noteForks(call.to, *request);
  const Undo undo = call.undo;
  auto unsent = c10::make_scope_exit([&] { undo(); });
  const bool onHost = !cuda::HostCopies::areNeeded(std::as_const(*request).tensors());
  SentCall sent = (this->*(onHost ? &Agent::startAtOnce : &Agent::startFromDevices))(
      std::move(call), std::move(request), std::move(targets), rpcTimeoutSeconds);
  unsent.release();
  undo.unlessSent(sent.failed);
  return sent;
}

Agent::SentCall Agent::startAtOnce(
    OwnCall call, c10::intrusive_ptr<Message> request, TensorDevices targets,
    float rpcTimeoutSeconds) {
  const WorkerId to = call.to;
  OutgoingFrame frame = encodeMessage(
      FrameKind::request, std::move(request), disposer_, TensorTargets{std::move(targets), {}});
  frame.undo = call.undo;
  const bool counted = node_.requests().isCounted(frame.bytes());
  const uint64_t callId = open(std::move(call), rpcTimeoutSeconds, counted);
  setCallId(frame, callId);
  noteDeadline(frame);
  return {callId, node_.requests().send(to, callId, std::move(frame), counted)};
}

Agent::SentCall Agent::startFromDevices(
    OwnCall call, c10::intrusive_ptr<Message> request, TensorDevices targets,
    float rpcTimeoutSeconds) {
  const size_t bytes = bytesOf(*request);
  cuda::OutgoingTensors tensors =
      transfers_->begin(call.to, std::as_const(*request).tensors(), std::move(targets));
  // What tickets stand for has a bound of its own; and a request that waited for room could end without being sent, which
  // who has lent memory for it would not learn.
  const bool counted = !tensors.hasTickets() && node_.requests().isCounted(bytes);
  const bool mustWait = tensors.mustWait();
  DeviceRequest started{call.to, std::move(request), std::move(tensors), counted, call.undo};
  const uint64_t callId = open(std::move(call), rpcTimeoutSeconds, counted);
  if (mustWait) {
    sendWhenCopied(callId, std::move(started));
    return {callId, Error()};
  }
  return {callId, sendFromDevices(callId, std::move(started))};
}

/// Waits for the tensors. Throws c10::Error if a device has failed.
Error Agent::sendFromDevices(uint64_t callId, DeviceRequest request) {
  request.message->tensors() = request.tensors.take();
  OutgoingFrame frame = encodeMessage(
      FrameKind::request, std::move(request.message), disposer_, request.tensors.targets());
  frame.undo = std::move(request.undo);
  setCallId(frame, callId);
  noteDeadline(frame);
  // Once the receiver may have read a ticket, it says when the memory is free.
  request.tensors.sent();
  return node_.requests().send(request.to, callId, std::move(frame), request.counted);
}

std::string Agent::cannotCopy(const std::exception& ofDevice) const {
  return "worker '" + workerInfo_.name_ +
      "' cannot copy a tensor from its device: " + cuda::reasonOf(ofDevice) +
      ". If the device is lost, restart the worker";
}

// Not here: who sends may hold locks, and does not expect to wait for a device.
void Agent::sendWhenCopied(uint64_t callId, DeviceRequest started) {
  Task task([this, callId, undo = started.undo, request = std::move(started)]() mutable {
    auto neverSent = c10::make_scope_exit([&] { undo(); });
    try {
      request.tensors.wait();
      if (!node_.calls().contains(callId)) {
        return; // it has timed out
      }
      const Error failed = sendFromDevices(callId, std::move(request));
      neverSent.release();
      if (failed) {
        node_.calls().fail(callId, failed);
      }
    } catch (const std::exception& e) { // of a device that has failed
      node_.calls().fail(callId, Error(ErrorCode::linkBroken, cannotCopy(e), Executed::no));
    }
  });
  if (!copies_->run(std::move(task))) {
    node_.calls().fail(
        callId,
        Error(
            ErrorCode::shutDown,
            "worker '" + workerInfo_.name_ +
                "' shuts its RPC agent down, or cannot start a thread to wait for a device",
            Executed::no));
  }
}

FunctionMetrics& Agent::metricsOf(const Message& request) {
  return metrics_->functions.find(LabelledRequest(request).label());
}

/// Enters the call into the table, as the latest of this thread's.
uint64_t Agent::open(OwnCall call, float rpcTimeoutSeconds, bool counted) {
  if (!call.inUse) {
    activeCalls_.start();
  }
  const WorkerId to = call.to;
  FunctionMetrics* const function = call.function;
  const auto pass = call.pass;
  const auto future = call.future;
  sentCalls.future = future.get();
  Undo undo = std::move(call.undo);
  const uint64_t callId = node_.calls().open(
      to,
      {.timeout = timeoutOf(rpcTimeoutSeconds),
       .tracked = counted,
       .limited = CallDeadline::get().has_value(),
       .function = function,
       .undo = std::move(undo)},
      // Not const: what it holds is moved on, never dropped where the call ends.
      [this, call = std::move(call)](Outcome outcome) mutable {
        complete(std::move(call), std::move(outcome));
      });
  if (pass) {
    TorchEngine::track(pass, future);
  }
  ++sentCalls.count;
  sentCalls.latest = callId;
  return callId;
}

void Agent::call(
    const WorkerInfo& to, c10::intrusive_ptr<Message> request, float rpcTimeoutSeconds,
    const std::function<void(Message& response)>& use) {
  checkCanSend(to, *request);
  TensorDevices targets = targetsOf(to, *request);
  const CallTarget target{to.id_, joinContext(to.id_, request)};
  const milliseconds timeout = timeoutOf(rpcTimeoutSeconds);
  const auto begun = std::chrono::steady_clock::now();
  FunctionMetrics& function = metricsOf(*request);
  EncodedRequest encoded = encodeRequest(to.id_, std::move(request), std::move(targets), [&] {
    expectTimeLeft(to.name_, timeout, begun);
  });
  // Until the response has been used, which may start further calls: RRefs in it tell their owners.
  activeCalls_.start();
  const auto finished = c10::make_scope_exit([&] { callEnded(target); });
  Outcome outcome = outcomeOf(to, std::move(encoded), timeout, function);
  if (outcome.error) {
    outcome.error = unanswered(target, outcome.error);
  }
  const auto ended = c10::make_scope_exit([this] {
    --endingHere;
    --endingOnWaiters_;
    endingOnWaiters_.notify_all();
  });
  c10::intrusive_ptr<Message> response;
  {
    std::optional<at::ThreadLocalStateGuard> restoredAfterwards;
    if (carriesTensors(outcome.response)) {
      restoredAfterwards.emplace(
          freshState()); // as in complete(); it costs more than all else here
    }
    response =
        placed(to.id_, responseIn(std::move(outcome), /* mayCreate */ false, /* creates */ false));
  }
  const TraceLog::Reading reading(metrics_->trace, to.id_, response->id());
  receiveDirectForward(to.id_, target.context, response);
  const AnswerScope answer(to.id_);
  use(*response);
}

/// The request of a thread that waits for its end: which may be for a device, too.
/// `expectTime` throws if that has taken too long.
Agent::EncodedRequest Agent::encodeRequest(
    WorkerId to, c10::intrusive_ptr<Message> request, TensorDevices targets,
    const std::function<void()>& expectTime) {
  EncodedRequest encoded;
  const Undo undo = noteForks(to, *request);
  auto unsent = c10::make_scope_exit([&] { undo(); });
  if (!cuda::HostCopies::areNeeded(std::as_const(*request).tensors())) {
    encoded.frame = encodeMessage(
        FrameKind::request, std::move(request), disposer_, TensorTargets{std::move(targets), {}});
    encoded.frame.undo = undo;
    encoded.counted = node_.requests().isCounted(encoded.frame.bytes());
    unsent.release();
    return encoded;
  }
  cuda::OutgoingTensors tensors =
      transfers_->begin(to, std::as_const(*request).tensors(), std::move(targets));
  try {
    request->tensors() = tensors.take();
  } catch (const std::exception& e) {
    throw std::runtime_error(cannotCopy(e));
  }
  expectTime();
  encoded.frame =
      encodeMessage(FrameKind::request, std::move(request), disposer_, tensors.targets());
  encoded.frame.undo = undo;
  encoded.counted = !tensors.hasTickets() &&
      node_.requests().isCounted(encoded.frame.bytes()); // as in startFromDevices
  tensors.sent();
  unsent.release();
  return encoded;
}

/// Sends the request of a call and waits until the call has ended, which then counts in endingOnWaiters_.
Outcome Agent::outcomeOf(
    const WorkerInfo& to, EncodedRequest request, milliseconds timeout, FunctionMetrics& function) {
  const auto waiter = std::make_shared<Waiter>();
  const auto result = std::make_shared<Outcome>();
  noteDeadline(request.frame);
  CallTable::Options options{
      .timeout = timeout,
      .tracked = request.counted,
      .limited = CallDeadline::get().has_value(),
      .function = &function,
      .undo = request.frame.undo};
  const uint64_t callId = node_.requests().call(
      to.id_, std::move(options), std::move(request.frame),
      [this, waiter, result](Outcome outcome) {
        ++endingOnWaiters_;
        *result = std::move(outcome);
        waiter->give([] {});
      });
  ++endingHere; // the caller's, from now on: a handler of a signal, which runs below this, may shut the agent down
  auto waits = c10::make_scope_exit([] { --endingHere; });
  awaitEnd(*waiter, callId);
  waits.release();
  return std::move(*result);
}

// Who gets the future can see that the call has failed, as on PyTorch's faulty backend. Nobody has it yet, so that no
// callback runs but that of watchCreation, which knows of no RRef yet.
void Agent::failUnseen(OwnCall call, uint64_t callId, const Error& error) {
  if (!node_.calls().withdraw(callId, error.code())) {
    return; // it has ended meanwhile in another way
  }
  call.future->setError(toException(error.to(directory_.nameOf(call.to)), call.mayCreate));
  ThreadPool& pool = *call.pool;
  endOn(pool, [this, call = std::move(call)]() mutable { finish(call); });
}

const Agent::SentCalls& Agent::sentByThisThread() {
  return sentCalls;
}

void Agent::await(uint64_t callId, const std::function<bool()>& hasCallbacks) {
  expectOwnProcess();
  const auto waiter = std::make_shared<Waiter>();
  if (!node_.calls().await(callId, waiter)) {
    return;
  }
  ++endingHere; // also while it waits: a handler of a signal, which runs below this, may shut the agent down
  const auto over = c10::make_scope_exit([] { --endingHere; });
  Task end = awaitEnd(*waiter, callId);
  if (hasCallbacks()) {
    endOn(completions_, std::move(end));
  } else {
    guarded("the end of a call", end);
    end = Task();
  }
  --endingOnWaiters_;
  endingOnWaiters_.notify_all();
}

/// On the thread that handles signals the call is cancelled when a handler raises.
Task Agent::awaitEnd(Waiter& waiter, uint64_t callId) {
  if (!handlesSignals()) {
    return waiter.await(loop_.get());
  }
  return waiter.await(loop_.get(), [this, callId] {
    if (runSignalHandlers()) {
      cancel(callId);
    }
  });
}

bool Agent::cancel(uint64_t callId) {
  expectOwnProcess();
  const auto given = node_.calls().giveUp(
      callId,
      Error(ErrorCode::cancelled, "the call was cancelled by worker '" + workerInfo_.name_ + "'"));
  if (given.tell) {
    tellCancelled(*given.tell, callId);
  }
  return given.ended;
}

/// Counts as active until the callee has noted it: functions that are to see it run there as long as the group does.
void Agent::tellCancelled(WorkerId to, uint64_t callId) {
  guarded("telling a worker of a cancelled call", [&] {
    activeCalls_.start();
    const std::shared_ptr<void> active(this, [this](void*) { activeCalls_.finish(); });
    OwnCalls::Body body;
    ByteWriter(body).number(callId);
    node_.ownCalls().open(
        to, own_requests::kCancel, std::move(body), getRpcTimeout(),
        [active](const OwnCalls::Answer&) {});
  });
}

void Agent::serveCancels() {
  node_.ownCalls().handle(
      own_requests::kCancel,
      [this](WorkerId caller, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        runCallbacks(server_->cancel(caller, ByteReader(request).number<uint64_t>()));
        reply({});
      });
}

void Agent::endOn(ThreadPool& pool, Task task) {
  // Where the process is at its limit of threads, another pool may have one. run() leaves a task that it does not take.
  for (ThreadPool* const each : {&pool, control_.get(), &requests_, &evaluations_}) {
    if (each->run(std::move(task))) {
      return;
    }
  }
  task(); // a call that slipped in while the agent shut down: its future must not stay open
}

/// Returns when no thread ends a call that it has waited for, but for this one.
void Agent::waitForWaiters() {
  for (int ending = endingOnWaiters_; ending > endingHere; ending = endingOnWaiters_) {
    endingOnWaiters_.wait(ending);
  }
}

/// Tells a peer of tensors that have gone or are to go past the frames. `done` runs on a thread that may block.
void Agent::tellOfTransfers(
    WorkerId to, std::vector<char> body, rpc::MessageType type,
    std::function<void(const std::string& error)> done) {
  // What this thread has sent is asked for by the program, which may be in the middle of a call.
  const auto ofTheProgram = c10::make_scope_exit([kept = sentCalls] { sentCalls = kept; });
  try {
    const auto answer = send(getWorkerInfo(to), messageOf(std::move(body), type));
    answer->addCallback([done](JitFuture& future) {
      done(future.hasError() ? future.tryRetrieveErrorMessage() : std::string());
    });
  } catch (const std::exception& e) { // the peer has left, or this worker shuts down
    done(e.what());
  }
}

} // namespace torchwire
