#include "backend/node/own_calls.h"

#include <atomic>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "backend/base/call_error.h"
#include "backend/base/fork.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/wire/failure.h"
#include "backend/wire/message_body.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

/// What has come in the place of an answer.
Error errorIn(uint32_t type, const OwnCalls::Body& body) {
  switch (type) {
    case own_requests::kFailed:
      return decodeFailure(body);
    case own_requests::kException:
      return {ErrorCode::raised, std::string(body.begin(), body.end()), Executed::yes};
    default:
      throw FormatError("it is of type " + std::to_string(type));
  }
}

OwnCalls::Answer answerIn(Outcome outcome, uint32_t expected) {
  if (outcome.error) {
    return {std::move(outcome.error), {}};
  }
  const uint32_t type = outcome.response.header.messageType;
  try {
    OwnCalls::Body body = bodyIn(std::move(outcome.response));
    return type == expected ? OwnCalls::Answer{Error(), std::move(body)}
                            : OwnCalls::Answer{errorIn(type, body), {}};
  } catch (const std::exception& e) {
    return {Error(ErrorCode::raised, std::string("cannot read the response: ") + e.what()), {}};
  }
}

} // namespace

// ---- at the caller ------------------------------------------------------------------------------

void OwnCalls::open(
    WorkerId to, uint32_t type, Body body, Milliseconds timeout, Answered answered) {
  worker_.requests.call(
      to, {.timeout = timeout}, bodyFrame(FrameKind::request, type, std::move(body)),
      [answered = std::move(answered), expected = own_requests::answerOf(type)](
          Outcome outcome) mutable { answered(answerIn(std::move(outcome), expected)); });
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
    std::rethrow_exception(exceptionOf(result->error));
  }
  return std::move(result->body);
}

// ---- at the callee ------------------------------------------------------------------------------

/// A request that has not been answered yet.
class OwnCalls::Pending {
 public:
  Pending(const OwnCalls& calls, WorkerId caller, const FrameHeader& request)
      : respond_(calls.worker_.respond),
        caller_(caller),
        callId_(request.callId),
        type_(request.messageType) {}
  ~Pending() {
    if (forkGeneration() == generation_) { // else a forked child drops its copy
      guarded("an answer", [&] { raise("this worker has no answer to the request"); });
    }
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  void reply(Body body) {
    answer(own_requests::answerOf(type_), std::move(body));
  }
  void fail(const std::exception_ptr& error, const char* text) {
    log(LogLevel::info,
        "a request of type " + std::to_string(type_) + " failed: " + std::string(text));
    if (const auto failed = callErrorIn(error)) {
      answer(own_requests::kFailed, encodeFailure(*failed));
    } else {
      raise(text);
    }
  }

 private:
  void raise(std::string_view text) {
    answer(own_requests::kException, {text.begin(), text.end()});
  }
  void answer(uint32_t type, Body body) {
    endIfForkedSince(generation_); // by what serves the request
    if (isAnswered_.exchange(true)) {
      return;
    }
    OutgoingFrame response = bodyFrame(FrameKind::response, type, std::move(body));
    setCallId(response, callId_);
    respond_(caller_, std::move(response));
  }

  const std::function<void(WorkerId caller, OutgoingFrame response)> respond_;
  const WorkerId caller_;
  const uint64_t callId_;
  const uint32_t type_;
  const uint64_t generation_ = forkGeneration();
  std::atomic<bool> isAnswered_{false};
};

void OwnCalls::handle(uint32_t type, Handler handler) {
  handlers_[type] = std::move(handler);
}

bool OwnCalls::serve(WorkerId caller, ReceivedFrame request) {
  const Handler& handler = handlers_.at(request.header.messageType);
  if (!seen_.add(caller, request.header.callId)) {
    log(LogLevel::info,
        "dropped a request that has come before: call " + std::to_string(request.header.callId));
    return true;
  }
  return worker_.run([this, &handler, caller, request = std::move(request)]() mutable {
    if (!worker_.isFormer(caller, request.incarnation)) {
      run(handler, caller, std::move(request));
    }
  });
}

void OwnCalls::run(const Handler& handler, WorkerId caller, ReceivedFrame request) const {
  const uint64_t generation = forkGeneration();
  const auto pending = std::make_shared<Pending>(*this, caller, request.header);
  try {
    handler(caller, bodyIn(std::move(request)), [pending](Body body) {
      pending->reply(std::move(body));
    });
  } catch (const std::exception& e) {
    pending->fail(std::current_exception(), e.what());
  }
  endIfForkedSince(generation);
}

} // namespace torchwire
