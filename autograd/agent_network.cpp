#include "autograd/agent_network.h"

#include <exception>
#include <utility>

#include "backend/base/call_error.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

rpc::MessageType typeOf(PassRequest kind) {
  switch (kind) {
    case PassRequest::discover:
      return own_messages::kDiscover;
    case PassRequest::resume:
      return own_messages::kResume;
    case PassRequest::endPass:
      break;
  }
  return own_messages::kEndPass;
}

} // namespace

Error passErrorOf(const rpc::JitFuture& future) {
  if (!future.hasError()) {
    return {};
  }
  return callErrorIn(future.exception_ptr())
      .value_or(Error(ErrorCode::raised, future.tryRetrieveErrorMessage()));
}

WorkerId AgentNetwork::self() const {
  return agent_.getWorkerInfo().id_;
}

std::string AgentNetwork::describe(WorkerId worker) const {
  try {
    return "worker '" + agent_.getWorkerInfo(static_cast<rpc::worker_id_t>(worker)).name_ + "'";
  } catch (const std::exception&) { // it has left the group
    return "the worker with rank " + std::to_string(worker);
  }
}

std::vector<WorkerId> AgentNetwork::peers() const {
  std::vector<WorkerId> others;
  for (const auto& worker : agent_.getWorkerInfos()) {
    if (worker.id_ != self()) {
      others.push_back(worker.id_);
    }
  }
  return others;
}

void AgentNetwork::request(
    WorkerId to, PassRequest kind, std::vector<char> body, milliseconds limit, Answer answer) {
  c10::intrusive_ptr<rpc::JitFuture> future;
  try {
    const float seconds =
        limit == milliseconds(0) ? rpc::kUnsetRpcTimeout : static_cast<float>(limit.count()) / 1000;
    future = agent_.send(
        agent_.getWorkerInfo(static_cast<rpc::worker_id_t>(to)),
        messageOf(std::move(body), typeOf(kind)), seconds);
  } catch (const std::exception& e) {
    answer(Error(ErrorCode::raised, e.what()), {});
    return;
  }
  future->addCallback(
      [answer = std::move(answer)](rpc::JitFuture& done) {
        const Error error = passErrorOf(done);
        answer(error, error ? std::vector<char>() : bodyOf(done));
      },
      /*uses_future=*/true);
}

void AgentNetwork::later(milliseconds delay, Task task) {
  timer_.after(delay, std::move(task));
}

void AgentNetwork::soon(Task task) {
  if (!pool_.run(std::move(task))) {
    task(); // the agent shuts down: the pass has been ended, and only has to find that out
  }
}

} // namespace torchwire
