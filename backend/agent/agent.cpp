#include "backend/agent/agent.h"

#include <utility>

#include "backend/agent/call_end.h"
#include "backend/agent/device_messages.h"
#include "backend/agent/forked_agent.h"
#include "backend/agent/seconds.h"
#include "backend/base/log.h"
#include "backend/serve/direct_call.h"
#include "backend/serve/owner_watch.h"
#include "backend/serve/profiled_call.h"
#include "rref/backward.h"
#include "rref/failed_creation.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

Agent::Agent(
    c10::intrusive_ptr<c10d::Store> store, std::string name, worker_id_t id,
    std::optional<int> worldSize, AgentOptions options)
    : RpcAgent(
          WorkerInfo(std::move(name), id), std::make_unique<Dispatcher>(),
          fromSeconds(options.rpcTimeoutSeconds)),
      program_(parts_),
      parts_(
          {*this, workerInfo_, rpcAgentRunning_, static_cast<Dispatcher&>(*cb_)}, std::move(store),
          worldSize, std::move(options), program_),
      bookkeeping_(parts_),
      caller_(parts_, bookkeeping_),
      report_(parts_),
      starting_(parts_),
      ending_(parts_, caller_) {
  beginFreshState(); // where there can be no thread, that shows here, and not when a call ends
  keepErrorHandlersValid();
  registerHandlers();
  ForkedAgent::standInForChildrenOf(workerInfo_); // it may be the current one before it starts
}

Agent::~Agent() {
  if (rpcAgentRunning_.load()) {
    shutdown();
  }
  shutdownImpl();
  log(LogLevel::debug, "worker '" + workerInfo_.name_ + "': its agent is freed");
}

void Agent::registerHandlers() {
  Dispatcher& dispatcher = parts_.dispatcher;
  dispatcher.whenAnswering([this](WorkerId caller, const Message& answer) {
    return bookkeeping_.noteForks(caller, answer);
  });
  dispatcher.orderStreams(parts_.options.deviceStreamOrder);
  dispatcher.runFunctionsOn(
      [this](Task&& task) { return parts_.pools.requests.run(std::move(task)); });
  dispatcher.handleDirectCalls(
      [&dispatcher](Message& request) { return serveDirectCall(dispatcher, request); });
  program_.serveCancels();
  serveProfiledCalls(dispatcher);
  parts_.rrefs->serve(dispatcher);
  parts_.engine->serve(dispatcher);
  parts_.contexts.serve(dispatcher, [this](WorkerId caller) {
    return parts_.devices->mapTo(caller, cuda::Direction::response);
  });
  rref::serveBackward(dispatcher, parts_.engine, parts_.rrefs);
  connectDeviceMessages(
      *parts_.transfers, dispatcher, parts_.pools.copies,
      [this](WorkerId to, c10::intrusive_ptr<Message> request) {
        return send(getWorkerInfo(static_cast<worker_id_t>(to)), std::move(request));
      });
}

c10::intrusive_ptr<rpc::JitFuture> Agent::send(
    const WorkerInfo& to, c10::intrusive_ptr<Message> message, const float rpcTimeoutSeconds,
    const DeviceMap& deviceMap) {
  caller_.expectRunning(to, *message);
  if (!Bookkeeping::keeps(message->type())) {
    return caller_.send(to, std::move(message), rpcTimeoutSeconds, deviceMap);
  }
  auto future = caller_.futureOf(at::AnyClassType::get());
  bookkeeping_.send(to.id_, std::move(message), future);
  return future;
}

// ---- the start and the end ----------------------------------------------------------------------

void Agent::startImpl() {
  const auto current = isCurrentRpcAgentSet() ? getCurrentRpcAgent() : nullptr;
  starting_.run(current.get() == this ? current : nullptr);
}

void Agent::join(bool shutdown, float timeout) {
  ending_.join(shutdown, timeout);
}

void Agent::shutdownImpl() {
  ending_.shutDown(weak_from_this().lock());
}

// ---- workers ------------------------------------------------------------------------------------

const rpc::WorkerInfo& Agent::getWorkerInfo(const std::string& name) const {
  return parts_.directory.byName(name);
}

const rpc::WorkerInfo& Agent::getWorkerInfo(worker_id_t id) const {
  return parts_.directory.byId(id);
}

std::vector<rpc::WorkerInfo> Agent::getWorkerInfos() const {
  return parts_.directory.all();
}

const std::vector<c10::Device>& Agent::getDevices() const {
  OwnerWatch::devicesAsked();
  return parts_.devices->used();
}

rpc::DeviceMap Agent::getDeviceMap(const WorkerInfo& to) const {
  return parts_.devices->mapTo(to.id_, cuda::Direction::request);
}

// ---- what it tells ------------------------------------------------------------------------------

std::unordered_map<std::string, std::string> Agent::getMetrics() {
  return report_.metrics();
}

std::unordered_map<std::string, std::string> Agent::getDebugInfo() {
  return report_.debugInfo();
}

void Agent::addGilWaitTime(const std::chrono::microseconds wait) {
  if (parts_.server) {
    ++parts_.server->metrics().gilWaits;
    parts_.server->metrics().gilWaitMicroseconds += wait.count();
  }
}

} // namespace torchwire
