#include "backend/serve/server.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/ivalue_inl.h>

#include <exception>
#include <string>
#include <utility>

#include "backend/base/log.h"
#include "backend/codec/codec.h"
#include "backend/serve/own_messages.h"
#include "cuda/devices.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

/// The response frame for what a handler left, or for why it cannot be sent.
OutgoingFrame encodeResult(rpc::JitFuture& result, const Disposer& disposer) {
  try {
    if (!result.hasError()) {
      auto message = result.value().toCustomClass<rpc::Message>();
      cuda::refuseCudaTensors(std::as_const(*message).tensors(), "Response");
      return encodeMessage(FrameKind::response, std::move(message), disposer);
    }
    return encodeMessage(
        FrameKind::response, rpc::createExceptionResponse(result.tryRetrieveErrorMessage(), -1),
        disposer);
  } catch (const std::exception& e) {
    return encodeMessage(FrameKind::response, rpc::createExceptionResponse(e, -1), disposer);
  }
}

} // namespace

Server::Server(const Dispatcher& dispatcher, RunRequest run, Disposer disposer, Respond respond)
    : dispatcher_(dispatcher),
      runRequest_(std::move(run)),
      disposer_(std::move(disposer)),
      respond_(std::move(respond)) {}

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
  const bool accepted = runRequest_(
      header.messageType,
      [self = shared_from_this(), caller, request = std::move(request)]() mutable {
        self->run(caller, std::move(request));
      });
  metrics_.active -= accepted ? 0 : 1;
  return accepted;
}

void Server::run(WorkerId caller, ReceivedFrame request) {
  // What a request leaves in the thread's state (grad mode, profiler callbacks: libtorch forgets to take
  // its own off) must not be seen by the next one, which likely gets the same thread.
  const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
  const uint64_t callId = request.header.callId;
  auto result = process(caller, std::move(request));
  ++metrics_.activeAsync;
  result->addCallback([self = shared_from_this(), caller, callId](JitFuture& done) {
    --self->metrics_.activeAsync;
    --self->metrics_.active;
    self->answer(caller, callId, done);
  });
}

c10::intrusive_ptr<rpc::JitFuture> Server::process(WorkerId caller, ReceivedFrame request) {
  try {
    auto message = decodeMessage(std::move(request));
    return dispatcher_.process(caller, *message);
  } catch (const std::exception&) {
    auto failed = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    failed->setError(std::current_exception());
    return failed;
  }
}

void Server::answer(WorkerId caller, uint64_t callId, JitFuture& result) {
  OutgoingFrame frame = encodeResult(result, disposer_);
  setCallId(frame, callId);
  respond_(caller, std::move(frame));
}

} // namespace torchwire
