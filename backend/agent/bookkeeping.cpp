#include "backend/agent/bookkeeping.h"

#include <ATen/ThreadLocalState.h>

#include <exception>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/codec/codec.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/request_label.h"
#include "backend/serve/response.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

Bookkeeping::Bookkeeping(AgentParts& parts)
    : parts_(parts),
      requests_(
          {parts_.timer, [this](Task&& task) { return parts_.pools.control->run(std::move(task)); },
           [this](WorkerId to) { return parts_.node.links()->incarnationOf(to); },
           [this] { return parts_.node.isClosed(); }}) {}

bool Bookkeeping::keeps(rpc::MessageType type) {
  return type == rpc::MessageType::RREF_USER_DELETE ||
      type == rpc::MessageType::RREF_FORK_REQUEST || type == rpc::MessageType::RREF_CHILD_ACCEPT ||
      type == own_messages::kCreationFailed;
}

void Bookkeeping::send(
    WorkerId to, c10::intrusive_ptr<Message> message, c10::intrusive_ptr<JitFuture> future) {
  if (parts_.rrefs->deletesOrphan(*message)) {
    future->markCompleted(at::IValue(rpc::RRefAck().toMessage()));
    return;
  }
  parts_.activeCalls.start();
  FunctionMetrics& function = parts_.metrics->functions.find(LabelledRequest(*message).label());
  requests_.send(
      to,
      [this, to, message = std::move(message), &function](MoveOnlyFunction<Outcome> completed) {
        OutgoingFrame frame = encodeMessage(FrameKind::request, message, parts_.disposer);
        parts_.node.requests().call(
            to, {.timeout = parts_.rpcTimeout(), .function = &function}, std::move(frame),
            [this, completed = std::move(completed)](Outcome outcome) mutable {
              parts_.pools.endOn(
                  parts_.pools.completions,
                  [completed = std::move(completed), outcome = std::move(outcome)]() mutable {
                    guarded("an RRef's bookkeeping", [&] { completed(std::move(outcome)); });
                  });
            });
      },
      [this, to, future = std::move(future)](RetriedRequests::Ended ended) {
        if (ended == RetriedRequests::Ended::closed) {
          parts_.activeCalls.finish(); // nothing waits for the future any more
        } else {
          end(to, *future);
        }
      });
}

void Bookkeeping::end(WorkerId to, JitFuture& future) {
  // libtorch's callbacks may begin calls, and run functions that have waited for this.
  const at::ThreadLocalStateGuard restoredAfterwards{at::ThreadLocalState()};
  guarded("an RRef's bookkeeping", [&] {
    try {
      complete(future, rpc::RRefAck().toMessage());
    } catch (const std::exception&) {
      if (!parts_.rrefs->ledger().isGone(to)) { // else the fork has been let go meanwhile
        throw;
      }
    }
  });
  parts_.activeCalls.finish();
}

Undo Bookkeeping::noteForks(WorkerId to, const Message& message) {
  PassedForks::Forks passed = parts_.rrefs->notePassed(to, message);
  if (passed.empty()) { // as nearly always
    return {};
  }
  if (parts_.rrefs->ledger().isGone(to)) {
    parts_.pools.control->run([rrefs = parts_.rrefs, to] { rrefs->reclaimPassed(to); });
  }
  return Undo([control = parts_.pools.control, rrefs = parts_.rrefs, passed = std::move(passed)] {
    control->run([rrefs, passed] { rrefs->takeBack(passed); });
  });
}

void Bookkeeping::withdraw(std::vector<PassedForks::Fork> forks) {
  parts_.pools.control->run(
      [rrefs = parts_.rrefs, forks = std::move(forks)] { rrefs->withdraw(forks); });
}

} // namespace torchwire
