#include "backend/node/own_calls.h"

#include <exception>
#include <memory>
#include <utility>

#include "backend/base/call_error.h"
#include "backend/base/log.h"
#include "backend/wire/failure.h"
#include "backend/wire/message_body.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

OwnCalls::Answer answerIn(Outcome outcome) {
  if (outcome.error) {
    return {std::move(outcome.error), {}};
  }
  try {
    const bool failed = outcome.response.header.messageType == own_requests::kFailed;
    OwnCalls::Body body = bodyIn(std::move(outcome.response));
    if (failed) {
      return {decodeFailure(body), {}};
    }
    return {Error(), std::move(body)};
  } catch (const FormatError& e) {
    return {Error(ErrorCode::badFrame, std::string("cannot read the response: ") + e.what()), {}};
  }
}

} // namespace

// ---- at the caller ------------------------------------------------------------------------------

void OwnCalls::open(
    WorkerId to, uint32_t type, Body body, Milliseconds timeout, Answered answered) {
  OutgoingFrame frame = bodyFrame(FrameKind::request, type, std::move(body));
  const uint64_t callId =
      worker_.calls.open(to, timeout, [answered = std::move(answered)](Outcome outcome) mutable {
        answered(answerIn(std::move(outcome)));
      });
  setCallId(frame, callId);
  if (const Error failed = worker_.transmit(to, callId, std::move(frame))) {
    worker_.calls.fail(callId, failed);
  }
}

OwnCalls::Body OwnCalls::ask(WorkerId to, uint32_t type, Body body, Milliseconds timeout) {
  const auto waiter = std::make_shared<Waiter>();
  const auto result = std::make_shared<Answer>();
  open(to, type, std::move(body), timeout, [waiter, result](Answer answer) {
    *result = std::move(answer);
    waiter->give([] {});
  });
  worker_.await(*waiter);
  if (result->error) {
    throw CallError(result->error);
  }
  return std::move(result->body);
}

// ---- at the callee ------------------------------------------------------------------------------

void OwnCalls::handle(uint32_t type, uint32_t answer, Handler handler) {
  handlers_[type] = {answer, std::move(handler)};
}

bool OwnCalls::serve(WorkerId caller, ReceivedFrame request) {
  const Served& served = handlers_.at(request.header.messageType);
  if (!seen_.add(caller, request.header.callId)) {
    log(LogLevel::info,
        "dropped a request that has come before: call " + std::to_string(request.header.callId));
    return true;
  }
  return worker_.run([this, &served, caller, request = std::move(request)]() mutable {
    if (!worker_.isFormer(caller, request.incarnation)) {
      run(served, caller, std::move(request));
    }
  });
}

void OwnCalls::run(const Served& served, WorkerId caller, ReceivedFrame request) const {
  const uint32_t requestType = request.header.messageType;
  const uint64_t callId = request.header.callId;
  const auto respond = [respond = worker_.respond, caller, callId](uint32_t type, Body body) {
    OutgoingFrame response = bodyFrame(FrameKind::response, type, std::move(body));
    setCallId(response, callId);
    respond(caller, std::move(response));
  };
  try {
    served.handler(caller, bodyIn(std::move(request)), [respond, type = served.answer](Body body) {
      respond(type, std::move(body));
    });
  } catch (const std::exception& e) {
    log(LogLevel::info,
        "a request of type " + std::to_string(requestType) + " failed: " + e.what());
    respond(own_requests::kFailed, encodeFailure(Error(ErrorCode::shutDown, e.what())));
  }
}

} // namespace torchwire
