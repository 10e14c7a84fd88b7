#include "backend/serve/server.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue_inl.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "backend/base/call_error.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/codec/codec.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/current_call.h"
#include "backend/serve/own_messages.h"
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
      std::shared_ptr<Server> server, WorkerId caller, uint64_t callId,
      CancelledCalls::Moment arrival)
      : server_(std::move(server)), caller_(caller), callId_(callId), arrival_(arrival) {
    ++server_->metrics_.activeAsync;
  }
  ~Pending() {
    if (!answered_) {
      guarded("an answer", [&] {
        end();
        server_->sendError(
            caller_, callId_,
            "worker '" + server_->devices_->self().name +
                "' has no result for the call: its future was dropped, or a device has failed");
      });
    }
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  void answer(JitFuture& result) {
    end();
    server_->answer(caller_, callId_, result);
  }

 private:
  void end() {
    answered_ = true;
    if (auto dropped = server_->cancelled_->ended(caller_, callId_, arrival_); !dropped.empty()) {
      server_->disposer_.keep(std::move(dropped));
    }
    --server_->metrics_.activeAsync;
    --server_->metrics_.active;
  }

  const std::shared_ptr<Server> server_;
  const WorkerId caller_;
  const uint64_t callId_;
  const CancelledCalls::Moment arrival_;
  bool answered_ = false;
};

Server::Server(
    const Dispatcher& dispatcher, RunRequest run, Disposer disposer, Respond respond,
    std::shared_ptr<const cuda::GroupDevices> devices, std::shared_ptr<cuda::Transfers> transfers,
    std::shared_ptr<ThreadPool> copies, bool inheritDeadline)
    : dispatcher_(dispatcher),
      runRequest_(std::move(run)),
      disposer_(std::move(disposer)),
      respond_(std::move(respond)),
      devices_(std::move(devices)),
      transfers_(std::move(transfers)),
      copies_(std::move(copies)),
      inheritDeadline_(inheritDeadline) {}

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
  const bool accepted = runRequest_(
      header.messageType,
      [self = shared_from_this(), caller, request = std::move(request), arrival = cancelled_->now(),
       deadline]() mutable { self->run(caller, std::move(request), arrival, deadline); });
  metrics_.active -= accepted ? 0 : 1;
  return accepted;
}

void Server::run(
    WorkerId caller, ReceivedFrame request, CancelledCalls::Moment arrival,
    std::optional<TimePoint> deadline) {
  if (isFormer_ && isFormer_(caller, request.incarnation)) {
    --metrics_.active;
    return;
  }
  // What a request leaves in the thread's state (grad mode, profiler callbacks: libtorch forgets to take
  // its own off) must not be seen by the next one, which likely gets the same thread.
  const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
  const uint64_t callId = request.header.callId;
  const ServingScope serving(caller, callId, arrival, cancelled_);
  const DeadlineScope limited(deadline);
  c10::intrusive_ptr<JitFuture> result;
  std::optional<cuda::RequestStreams> streams; // also of the answer, where there is one at once
  try {
    result = process(caller, decodeMessage(std::move(request)), streams);
  } catch (const std::exception&) {
    result = failedFuture();
  }
  result->addCallback(
      [pending = std::make_shared<Pending>(shared_from_this(), caller, callId, arrival)](
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
      streams.emplace(request.targets.devices);
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

void Server::answer(WorkerId caller, uint64_t callId, JitFuture& result) {
  if (result.hasError()) {
    if (const auto failed = callErrorIn(result.exception_ptr())) {
      send(caller, callId, messageOf(encodeFailure(*failed), own_messages::kFailed), {});
    } else {
      sendError(caller, callId, devices_->withRemedy(caller, result.tryRetrieveErrorMessage()));
    }
    return;
  }
  try {
    answer(caller, callId, result.value().toCustomClass<rpc::Message>());
  } catch (const std::exception& e) { // the response cannot be sent
    sendError(caller, callId, cuda::reasonOf(e));
  }
}

void Server::answer(WorkerId caller, uint64_t callId, c10::intrusive_ptr<rpc::Message> response) {
  const Dispatcher::Undo notSent = dispatcher_.answering(caller, *response);
  try {
    begin(caller, callId, std::move(response), notSent);
  } catch (const std::exception&) {
    if (notSent) {
      notSent();
    }
    throw;
  }
}

void Server::begin(
    WorkerId caller, uint64_t callId, c10::intrusive_ptr<rpc::Message> response,
    const Dispatcher::Undo& notSent) {
  const auto& tensors = std::as_const(*response).tensors();
  TensorDevices targets = devices_->targets(caller, cuda::Direction::response, tensors);
  if (!cuda::HostCopies::areNeeded(tensors)) {
    send(caller, callId, std::move(response), TensorTargets{std::move(targets), {}});
    return;
  }
  auto outgoing = transfers_->begin(caller, tensors, std::move(targets));
  if (outgoing.mustWait()) {
    answerWhenCopied(caller, callId, std::move(response), std::move(outgoing), notSent);
  } else {
    send(caller, callId, std::move(response), std::move(outgoing));
  }
}

// Not here: whoever completes a future is not to wait for its device.
void Server::answerWhenCopied(
    WorkerId caller, uint64_t callId, c10::intrusive_ptr<rpc::Message> response,
    cuda::OutgoingTensors tensors, Dispatcher::Undo notSent) {
  Task task([self = shared_from_this(), caller, callId, response = std::move(response),
             tensors = std::move(tensors), notSent = std::move(notSent)]() mutable {
    try {
      self->send(caller, callId, std::move(response), std::move(tensors));
    } catch (const std::exception& e) {
      if (notSent) {
        notSent();
      }
      self->sendError(caller, callId, cuda::reasonOf(e));
    }
  });
  if (!copies_->run(std::move(task))) {
    task(); // the agent shuts down
  }
}

void Server::send(
    WorkerId caller, uint64_t callId, c10::intrusive_ptr<rpc::Message> response,
    cuda::OutgoingTensors tensors) {
  response->tensors() = tensors.take();
  OutgoingFrame frame =
      encodeMessage(FrameKind::response, std::move(response), disposer_, tensors.targets());
  tensors.sent(); // once the receiver may have read a ticket, it says when the memory is free
  setCallId(frame, callId);
  respond_(caller, std::move(frame));
}

void Server::send(
    WorkerId caller, uint64_t callId, c10::intrusive_ptr<rpc::Message> response,
    const TensorTargets& targets) {
  OutgoingFrame frame = encodeMessage(FrameKind::response, std::move(response), disposer_, targets);
  setCallId(frame, callId);
  respond_(caller, std::move(frame));
}

void Server::sendError(WorkerId caller, uint64_t callId, const std::string& text) {
  send(caller, callId, rpc::createExceptionResponse(text, -1));
}

} // namespace torchwire
