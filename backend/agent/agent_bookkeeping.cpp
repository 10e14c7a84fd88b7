// Agent: requests by which the books of RRefs are kept with others.
//
// libtorch sends each up to six times (RpcAgent::sendWithRetries). What it does after the last failure it does on a thread of
// its own, where it throws (RRefContext::handleException), and the process ends. So none of them fails here: it is sent again
// for as long as its callee is in the group. A callee that is dead or has left keeps no books any more, so that the request
// counts as answered. The same holds where another process has come in the callee's place between two tries: it would note a
// fork of which it never hears again.
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/agent/call_end.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/codec/codec.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{5000};
// Of a callee that answers with an error: it will not do so for ever for another reason than that it cannot.
constexpr int kRefusals = 5;

bool isGone(ErrorCode code) {
  return code == ErrorCode::workerDied || code == ErrorCode::peerLeft ||
      code == ErrorCode::declaredDead;
}

} // namespace

bool Agent::keepsBooks(rpc::MessageType type) {
  return type == rpc::MessageType::RREF_USER_DELETE ||
      type == rpc::MessageType::RREF_FORK_REQUEST || type == rpc::MessageType::RREF_CHILD_ACCEPT ||
      type == own_messages::kCreationFailed;
}

struct Agent::Bookkeeping {
  WorkerId to;
  uint64_t incarnation; // of the callee
  c10::intrusive_ptr<Message> message;
  c10::intrusive_ptr<JitFuture> future;
  milliseconds pause = kFirstPause; // before it is sent again
  int refusals = 0;
};

c10::intrusive_ptr<rpc::JitFuture> Agent::sendBookkeeping(
    WorkerId to, c10::intrusive_ptr<Message> message) {
  auto future = futureOf(at::AnyClassType::get());
  if (rrefs_->deletesOrphan(*message)) {
    future->markCompleted(at::IValue(rpc::RRefAck().toMessage()));
    return future;
  }
  activeCalls_.start();
  trySend({to, links_->incarnationOf(to), std::move(message), future});
  return future;
}

void Agent::trySend(Bookkeeping request) {
  FunctionMetrics& function = metricsOf(*request.message);
  OutgoingFrame frame = encodeMessage(FrameKind::request, request.message, disposer_);
  sender_.call(
      request.to, {.timeout = getRpcTimeout(), .function = &function}, std::move(frame),
      [this, request = std::move(request)](Outcome outcome) mutable {
        endOn(
            completions_,
            [this, request = std::move(request), outcome = std::move(outcome)]() mutable {
              guarded("an RRef's bookkeeping", [&] {
                onBookkeepingEnd(std::move(request), std::move(outcome));
              });
            });
      });
}

void Agent::onBookkeepingEnd(Bookkeeping request, Outcome outcome) {
  const ErrorCode code = outcome.error.code();
  const bool answered = !outcome.error;
  if (answered && !hasFailed(outcome)) {
    endBookkeeping(request, responseIn(std::move(outcome), false, false).message);
  } else if (isGone(code) || (answered && ++request.refusals > kRefusals)) {
    endBookkeeping(request, rpc::RRefAck().toMessage());
  } else if (code == ErrorCode::shutDown || closed_) {
    activeCalls_.finish(); // and the future stays as it is: nothing waits for it any more
  } else {
    sendAgain(std::move(request));
  }
}

void Agent::endBookkeeping(const Bookkeeping& request, c10::intrusive_ptr<Message> answer) {
  // libtorch's callbacks may begin calls, and run functions that have waited for this.
  const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
  guarded("an RRef's bookkeeping", [&] {
    try {
      torchwire::complete(*request.future, std::move(answer));
    } catch (const std::exception&) {
      if (!rrefs_->ledger().isGone(request.to)) { // else the fork has been let go meanwhile
        throw;
      }
    }
  });
  activeCalls_.finish();
}

void Agent::sendAgain(Bookkeeping request) {
  const milliseconds pause = request.pause;
  request.pause = std::min(2 * pause, kLongestPause);
  timer_.after(pause, [this, request = std::move(request)]() mutable {
    control_->run([this, request = std::move(request)]() mutable {
      guarded("an RRef's bookkeeping", [&] {
        if (links_->incarnationOf(request.to) == request.incarnation) {
          trySend(std::move(request));
        } else {
          endBookkeeping(request, rpc::RRefAck().toMessage());
        }
      });
    });
  });
}

/// Of each message that may carry RRefs, before it is sent. Returns what takes back the forks in it.
Undo Agent::noteForks(WorkerId to, const Message& message) {
  PassedForks::Forks passed = rrefs_->notePassed(to, message);
  if (passed.empty()) { // as nearly always
    return {};
  }
  if (rrefs_->ledger().isGone(to)) {
    control_->run([this, to] { rrefs_->reclaimPassed(to); });
  }
  return Undo([control = control_, rrefs = rrefs_, passed = std::move(passed)] {
    control->run([rrefs, passed] { rrefs->takeBack(passed); });
  });
}

void Agent::withdrawPickled(std::vector<PassedForks::Fork> forks) {
  control_->run([this, forks = std::move(forks)] { rrefs_->withdraw(forks); });
}

} // namespace torchwire
