#include "backend/node/retried_requests.h"

#include <algorithm>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
// A callee that answers with an error this often does so because it cannot do otherwise.
constexpr int kMaxErrors = 5;

bool isGone(ErrorCode code) {
  return code == ErrorCode::workerDied || code == ErrorCode::peerLeft ||
      code == ErrorCode::declaredDead;
}

} // namespace

struct RetriedRequests::Request {
  WorkerId to;
  uint64_t incarnation; // of the callee
  Attempt attempt;
  Completion completion;
  milliseconds pause = kFirstPause; // before the next attempt
  int errors = 0; // that the callee has answered with
};

void RetriedRequests::send(WorkerId to, Attempt attempt, Completion completion) {
  this->attempt({to, worker_.incarnationOf(to), std::move(attempt), std::move(completion)});
}

void RetriedRequests::attempt(Request request) {
  const Attempt send = request.attempt;
  send([this, request = std::move(request)](Outcome outcome) mutable {
    onEnd(std::move(request), std::move(outcome));
  });
}

void RetriedRequests::onEnd(Request request, Outcome outcome) {
  const ErrorCode code = outcome.error.code();
  const bool answered = !outcome.error;
  if (answered && !own_requests::isError(outcome.response.header.messageType)) {
    request.completion(Ended::answered);
  } else if (isGone(code) || (answered && ++request.errors > kMaxErrors)) {
    request.completion(Ended::calleeGone);
  } else if (code == ErrorCode::shutDown || worker_.isClosed()) {
    request.completion(Ended::closed);
  } else {
    sendLater(std::move(request));
  }
}

void RetriedRequests::sendLater(Request request) {
  const milliseconds pause = request.pause;
  request.pause = std::min(2 * pause, kLongestPause);
  worker_.timer.after(pause, [this, request = std::move(request)]() mutable {
    worker_.control([this, request = std::move(request)]() mutable {
      guarded("a request that is sent again", [&] {
        if (worker_.incarnationOf(request.to) == request.incarnation) {
          attempt(std::move(request));
        } else {
          request.completion(Ended::calleeGone);
        }
      });
    });
  });
}

} // namespace torchwire
