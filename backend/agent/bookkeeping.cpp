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

Bookkeeping::Bookkeeping(Worker worker)
    : worker_(std::move(worker)),
      requests_(
          {worker_.timer,
           [this](Task&& task) { return worker_.pools.control->run(std::move(task)); },
           [this](WorkerId to) { return worker_.node.links()->incarnationOf(to); },
           [this] { return worker_.node.isClosed(); }}) {}

bool Bookkeeping::keeps(rpc::MessageType type) {
  return type == rpc::MessageType::RREF_USER_DELETE ||
      type == rpc::MessageType::RREF_FORK_REQUEST || type == rpc::MessageType::RREF_CHILD_ACCEPT ||
      type == own_messages::kCreationFailed;
}

void Bookkeeping::send(
    WorkerId to, c10::intrusive_ptr<Message> message, c10::intrusive_ptr<JitFuture> future) {
  if (worker_.rrefs->deletesOrphan(*message)) {
    future->markCompleted(at::IValue(rpc::RRefAck().toMessage()));
    return;
  }
  worker_.active.start();
  FunctionMetrics& function = worker_.metrics.functions.find(LabelledRequest(*message).label());
  requests_.send(
      to,
      [this, to, message = std::move(message), &function](MoveOnlyFunction<Outcome> completed) {
        OutgoingFrame frame = encodeMessage(FrameKind::request, message, worker_.disposer);
        worker_.node.requests().call(
            to, {.timeout = worker_.timeout(), .function = &function}, std::move(frame),
            [this, completed = std::move(completed)](Outcome outcome) mutable {
              worker_.pools.endOn(
                  worker_.pools.completions,
                  [completed = std::move(completed), outcome = std::move(outcome)]() mutable {
                    guarded("an RRef's bookkeeping", [&] { completed(std::move(outcome)); });
                  });
            });
      },
      [this, to, future = std::move(future)](RetriedRequests::Ended ended) {
        if (ended == RetriedRequests::Ended::closed) {
          worker_.active.finish(); // nothing waits for the future any more
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
      if (!worker_.rrefs->ledger().isGone(to)) { // else the fork has been let go meanwhile
        throw;
      }
    }
  });
  worker_.active.finish();
}

Undo Bookkeeping::noteForks(WorkerId to, const Message& message) {
  PassedForks::Forks passed = worker_.rrefs->notePassed(to, message);
  if (passed.empty()) { // as nearly always
    return {};
  }
  if (worker_.rrefs->ledger().isGone(to)) {
    worker_.pools.control->run([rrefs = worker_.rrefs, to] { rrefs->reclaimPassed(to); });
  }
  return Undo([control = worker_.pools.control, rrefs = worker_.rrefs, passed = std::move(passed)] {
    control->run([rrefs, passed] { rrefs->takeBack(passed); });
  });
}

void Bookkeeping::withdraw(std::vector<PassedForks::Fork> forks) {
  worker_.pools.control->run(
      [rrefs = worker_.rrefs, forks = std::move(forks)] { rrefs->withdraw(forks); });
}

} // namespace torchwire
