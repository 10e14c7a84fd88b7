#include "backend/serve/server.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue_inl.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "backend/base/call_error.h"
#include "backend/base/fork.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/codec/codec.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/current_call.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/request_label.h"
#include "backend/serve/response.h"
#include "backend/wire/failure.h"
#include "cuda/error_text.h"
#include "cuda/host_copies.h"
#include "cuda/streams.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

c10::intrusive_ptr<rpc::JitFuture> failedFuture() {
  auto failed = c10::make_intrusive<rpc::JitFuture>(at::AnyClassType::get());
  failed->setError(std::current_exception());
  return failed;
}

} // namespace

/// A request that has not been answered yet: answered with an error, if it goes without. A future may be dropped before it
/// has a result; and it does not run its callbacks if a device fails that it has them wait for.
class Server::Pending {
 public:
  Pending(
      std::shared_ptr<Server> server, CancelledCalls::Moment arrival, ServedCalls::Ticket ticket)
      : server_(std::move(server)), arrival_(arrival), ticket_(std::move(ticket)) {
    ++server_->metrics_.activeAsync;
  }
  ~Pending() {
    if (!answered_ && forkGeneration() == generation_) { // else a forked child drops its copy
      guarded("an answer", [&] {
        server_->sendError(
            end(),
            "worker '" + server_->devices_->self().name +
                "' has no result for the call: its future was dropped, or a device has failed");
      });
    }
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  void answer(JitFuture& result) {
    server_->answer(end(), result);
  }

 private:
  Answered end() {
    endIfForkedSince(generation_); // a callback that completes another future may fork, too
    answered_ = true;
    const ServedCalls::Request request = ticket_.request();
    if (auto dropped = server_->cancelled_->ended(request.caller, request.callId, arrival_);
        !dropped.empty()) {
      server_->disposer_.keep(std::move(dropped));
    }
    --server_->metrics_.activeAsync;
    --server_->metrics_.active;
    return {request, ticket_.end()};
  }

  const std::shared_ptr<Server> server_;
  const CancelledCalls::Moment arrival_;
  const uint64_t generation_ = forkGeneration();
  ServedCalls::Ticket ticket_; // which goes before the server that it is of
  bool answered_ = false;
};

/// A request that waits for a thread.
struct Server::Arrived {
  std::shared_ptr<Server> server;
  ServedCalls::Ticket ticket; // which goes before the server
  ReceivedFrame frame;
  CancelledCalls::Moment arrival;
  std::optional<TimePoint> deadline;
};

Server::Server(
    const Dispatcher& dispatcher, RunRequest run, Disposer disposer, Respond respond,
    std::shared_ptr<const cuda::GroupDevices> devices, std::shared_ptr<cuda::Transfers> transfers,
    std::shared_ptr<ThreadPool> copies, std::shared_ptr<CallMetrics> calls, bool inheritDeadline)
    : dispatcher_(dispatcher),
      runRequest_(std::move(run)),
      disposer_(std::move(disposer)),
      respond_(std::move(respond)),
      devices_(std::move(devices)),
      transfers_(std::move(transfers)),
      copies_(std::move(copies)),
      inheritDeadline_(inheritDeadline),
      calls_(std::move(calls)) {}

bool Server::serve(WorkerId caller, ReceivedFrame request) {
  const FrameHeader header = request.header;
  // A backward pass counts its requests and their answers, so that each must count once. Calls are left to the
  // user to make repeatable, and libtorch's own messages are so.
  if (own_messages::isOwnRequest(header.messageType) && !seen_.add(caller, header.callId)) {
    log(LogLevel::info,
        "dropped a request that has come before: call " + std::to_string(header.callId));
    return true;
  }
  ++metrics_.active;
  std::optional<TimePoint> deadline;
  if (inheritDeadline_ && header.timeLeft.count() != 0) {
    deadline =
        TimePoint::clock::now() + header.timeLeft; // the way here is not known, and mostly short
  }
  FunctionMetrics& function = calls_->functions.find(LabelledRequest(request).label());
  Arrived arrived{
      shared_from_this(), served_.add({caller, header.callId, &function}), std::move(request),
      cancelled_->now(), deadline};
  const bool accepted = runRequest_(header.messageType, [arrived = std::move(arrived)]() mutable {
    Server& self = *arrived.server;
    self.run(std::move(arrived));
  });
  metrics_.active -= accepted ? 0 : 1;
  return accepted;
}

void Server::run(Arrived arrived) {
  const ServedCalls::Request request = arrived.ticket.request();
  const CancelledCalls::Moment arrival = arrived.arrival;
  if (isFormer_ && isFormer_(request.caller, arrived.frame.incarnation)) {
    --metrics_.active;
    return;
  }
  arrived.ticket.start();
  // What a request leaves in the thread's state (grad mode, profiler callbacks: libtorch forgets to take
  // its own off) must not be seen by the next one, which likely gets the same thread.
  const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
  const ServingScope serving(request, arrival, cancelled_, &arrived.ticket.rref());
  const DeadlineScope limited(arrived.deadline);
  const uint64_t generation = forkGeneration();
  c10::intrusive_ptr<JitFuture> result;
  std::optional<cuda::RequestStreams> streams; // also of the answer, where there is one at once
  try {
    result = process(request.caller, decodeMessage(std::move(arrived.frame)), streams);
  } catch (const std::exception&) {
    result = failedFuture();
  }
  endIfForkedSince(generation);
  if (!result->completed()) {
    arrived.ticket.returned();
  }
  result->addCallback(
      [pending = std::make_shared<Pending>(shared_from_this(), arrival, std::move(arrived.ticket))](
          JitFuture& done) { pending->answer(done); });
}

c10::intrusive_ptr<rpc::JitFuture> Server::process(
    WorkerId caller, DecodedMessage request, std::optional<cuda::RequestStreams>& streams) {
  if (request.targets.devices.empty()) { // as nearly always
    return dispatcher_.process(caller, *request.message);
  }
  auto& tensors = request.message->tensors();
  try {
    try {
      devices_->expectUsed(request.targets.devices);
      streams.emplace(request.targets.devices, dispatcher_.streamOrder());
    } catch (const std::exception&) { // of a device that is lost
      transfers_->discard(caller, tensors, request.targets);
      throw;
    }
    transfers_->place(caller, tensors, request.targets);
  } catch (const std::exception&) {
    auto failed = dispatcher_.failCreation(caller, *request.message, std::current_exception());
    if (!failed) {
      throw;
    }
    return failed;
  }
  auto result = dispatcher_.process(caller, *request.message);
  streams->end();
  return result;
}

void Server::answer(const Answered& answered, JitFuture& result) {
  if (result.hasError()) {
    if (const auto failed = callErrorIn(result.exception_ptr())) {
      ServingScope::countError(answered.request);
      send(answered, messageOf(encodeFailure(*failed), own_messages::kFailed), {});
    } else {
      sendError(
          answered,
          devices_->withRemedy(answered.request.caller, result.tryRetrieveErrorMessage()));
    }
    return;
  }
  try {
    answer(answered, result.value().toCustomClass<rpc::Message>());
  } catch (const std::exception& e) { // the response cannot be sent
    sendError(answered, cuda::reasonOf(e));
  }
}

void Server::answer(Answered answered, c10::intrusive_ptr<rpc::Message> response) {
  answered.undo = dispatcher_.answering(answered.request.caller, *response);
  try {
    begin(answered, std::move(response));
  } catch (const std::exception&) {
    answered.undo();
    throw;
  }
}

void Server::begin(const Answered& answered, c10::intrusive_ptr<rpc::Message> response) {
  const auto& tensors = std::as_const(*response).tensors();
  TensorDevices targets =
      devices_->targets(answered.request.caller, cuda::Direction::response, tensors);
  if (!cuda::HostCopies::areNeeded(tensors)) {
    send(answered, std::move(response), TensorTargets{std::move(targets), {}});
    return;
  }
  auto outgoing = transfers_->begin(answered.request.caller, tensors, std::move(targets));
  if (outgoing.mustWait()) {
    answerWhenCopied(answered, std::move(response), std::move(outgoing));
  } else {
    send(answered, std::move(response), std::move(outgoing));
  }
}

// Not here: whoever completes a future is not to wait for its device.
void Server::answerWhenCopied(
    const Answered& answered, c10::intrusive_ptr<rpc::Message> response,
    cuda::OutgoingTensors tensors) {
  Task task([self = shared_from_this(), answered, response = std::move(response),
             tensors = std::move(tensors)]() mutable {
    try {
      self->send(answered, std::move(response), std::move(tensors));
    } catch (const std::exception& e) {
      answered.undo();
      self->sendError(answered, cuda::reasonOf(e));
    }
  });
  if (!copies_->run(std::move(task))) {
    task(); // the agent shuts down
  }
}

void Server::send(
    const Answered& answered, c10::intrusive_ptr<rpc::Message> response,
    cuda::OutgoingTensors tensors) {
  response->tensors() = tensors.take();
  OutgoingFrame frame =
      encodeMessage(FrameKind::response, std::move(response), disposer_, tensors.targets());
  tensors.sent(); // once the receiver may have read a ticket, it says when the memory is free
  respond(answered, std::move(frame));
}

void Server::send(
    const Answered& answered, c10::intrusive_ptr<rpc::Message> response,
    const TensorTargets& targets) {
  respond(answered, encodeMessage(FrameKind::response, std::move(response), disposer_, targets));
}

void Server::respond(const Answered& answered, OutgoingFrame frame) {
  setCallId(frame, answered.request.callId);
  setServed(frame, answered.served);
  frame.undo = answered.undo;
  respond_(answered.request.caller, std::move(frame));
}

void Server::sendError(Answered answered, const std::string& text) {
  answered.undo = {}; // which is of another response
  ServingScope::countError(answered.request);
  send(answered, rpc::createExceptionResponse(text, -1));
}

} // namespace torchwire
