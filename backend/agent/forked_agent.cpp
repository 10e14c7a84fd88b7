#include "backend/agent/forked_agent.h"

#include <pthread.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/request_callback.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <utility>

#include "autograd/forked_child.h"
#include "backend/base/private_member.h"
#include "rref/forked_child.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

// A child puts a ForkedAgent in its place. The public function that sets it drops the one that was there, whose
// destructor waits for threads that the child does not have.
struct CurrentRpcAgent {
  friend auto pointerTo(CurrentRpcAgent);
};
template struct PrivateMember<CurrentRpcAgent, &rpc::RpcAgent::currentRpcAgent_>;

namespace {

using AgentPointer = std::shared_ptr<rpc::RpcAgent>;

// Made beforehand, so that a child has little to do. By pointer: the handlers below take no lock.
std::atomic<const AgentPointer*> forChildren{nullptr};

AgentPointer* currentAgent() {
  return pointerTo(CurrentRpcAgent());
}

// libtorch reads the current agent at every call by std::atomic_load, which locks a mutex of libstdc++'s; by this class,
// whose name is not the standard's. A child that is forked while another thread holds that mutex would wait for it for
// ever. Nothing is taken while it is held, so the thread that forks may wait for it whatever it holds.
thread_local std::optional<std::_Sp_locker> currentAgentLock;

void beforeFork() {
  currentAgentLock.emplace(currentAgent());
}

void afterForkInParent() {
  currentAgentLock.reset();
}

void afterForkInChild() {
  currentAgentLock.reset();
  const AgentPointer* const refusing = forChildren.exchange(nullptr);
  if (refusing == nullptr || *currentAgent() == nullptr) {
    return;
  }
  leaveRRefsToParent(*refusing);
  freeContainerLocks();
  std::construct_at(currentAgent(), *refusing); // the former reference stays for ever
}

void replaceForChildren(const AgentPointer* next) {
  delete forChildren.exchange(next); // NOLINT(cppcoreguidelines-owning-memory)
}

} // namespace

ForkedAgent::ForkedAgent(WorkerInfo parent)
    : RpcAgent(std::move(parent), nullptr, std::chrono::milliseconds(0)),
      refusal_(
          "this process was forked from worker '" + workerInfo_.name_ +
          "' after init_rpc, and the connections are that worker's: call init_rpc in it, or start "
          "it by the start method 'spawn'") {}

std::shared_ptr<ForkedAgent> ForkedAgent::current() {
  return isCurrentRpcAgentSet() ? std::dynamic_pointer_cast<ForkedAgent>(getCurrentRpcAgent())
                                : nullptr;
}

std::string ForkedAgent::refusalHere() {
  const auto agent = current();
  return agent ? agent->refusal() : "this process was forked while its parent waited here";
}

void ForkedAgent::standInForChildrenOf(const WorkerInfo& worker) {
  [[maybe_unused]] static const int registered =
      pthread_atfork(beforeFork, afterForkInParent, afterForkInChild);
  replaceForChildren(new AgentPointer(std::make_shared<ForkedAgent>(worker)));
}

void ForkedAgent::endForChildren() {
  replaceForChildren(nullptr);
}

c10::intrusive_ptr<rpc::JitFuture> ForkedAgent::send(
    const WorkerInfo& /*to*/, c10::intrusive_ptr<rpc::Message> /*message*/,
    float /*rpcTimeoutSeconds*/, const rpc::DeviceMap& /*deviceMap*/) {
  throw std::runtime_error(refusal_);
}

const rpc::WorkerInfo& ForkedAgent::getWorkerInfo(const std::string& /*name*/) const {
  throw std::runtime_error(refusal_);
}

const rpc::WorkerInfo& ForkedAgent::getWorkerInfo(rpc::worker_id_t /*id*/) const {
  throw std::runtime_error(refusal_);
}

Engine& ForkedAgent::engine() {
  throw std::runtime_error(refusal_);
}

} // namespace torchwire
