// Agent: requests by which the books of RRefs are kept with others.
//
// libtorch sends each up to six times (RpcAgent::sendWithRetries). What it does after the last failure it does on a thread of
// its own, where it throws (RRefContext::handleException), and the process ends. So none of them fails here (RetriedRequests).
// A callee that is gone keeps no books any more, so that the request counts as answered.
#include <ATen/ThreadLocalState.h>

#include <utility>

#include "backend/agent/agent.h"
#include "backend/agent/call_end.h"
#include "backend/base/guarded.h"
#include "backend/base/log.h"
#include "backend/codec/codec.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

bool Agent::keepsBooks(rpc::MessageType type) {
  return type == rpc::MessageType::RREF_USER_DELETE ||
      type == rpc::MessageType::RREF_FORK_REQUEST || type == rpc::MessageType::RREF_CHILD_ACCEPT ||
      type == own_messages::kCreationFailed;
}

c10::intrusive_ptr<rpc::JitFuture> Agent::sendBookkeeping(
    WorkerId to, c10::intrusive_ptr<Message> message) {
  auto future = futureOf(at::AnyClassType::get());
  if (rrefs_->deletesOrphan(*message)) {
    future->markCompleted(at::IValue(rpc::RRefAck().toMessage()));
    return future;
  }
  activeCalls_.start();
  FunctionMetrics& function = metricsOf(*message);
  bookkeeping_.send(
      to,
      [this, to, message, &function](MoveOnlyFunction<Outcome> completed) {
        OutgoingFrame frame = encodeMessage(FrameKind::request, message, disposer_);
        node_.requests().call(
            to, {.timeout = getRpcTimeout(), .function = &function}, std::move(frame),
            [this, completed = std::move(completed)](Outcome outcome) mutable {
              endOn(
                  completions_,
                  [completed = std::move(completed), outcome = std::move(outcome)]() mutable {
                    guarded("an RRef's bookkeeping", [&] { completed(std::move(outcome)); });
                  });
            });
      },
      [this, to, future](RetriedRequests::Ended ended) {
        if (ended == RetriedRequests::Ended::closed) {
          activeCalls_.finish(); // and the future stays as it is: nothing waits for it any more
        } else {
          endBookkeeping(to, *future);
        }
      });
  return future;
}

void Agent::endBookkeeping(WorkerId to, JitFuture& future) {
  // libtorch's callbacks may begin calls, and run functions that have waited for this.
  const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
  guarded("an RRef's bookkeeping", [&] {
    try {
      torchwire::complete(future, rpc::RRefAck().toMessage());
    } catch (const std::exception&) {
      if (!rrefs_->ledger().isGone(to)) { // else the fork has been let go meanwhile
        throw;
      }
    }
  });
  activeCalls_.finish();
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
