#include "backend/agent/agent.h"

#include <utility>

#include "backend/agent/call_end.h"
#include "backend/agent/device_messages.h"
#include "backend/agent/forked_agent.h"
#include "backend/agent/seconds.h"
#include "backend/base/bytes.h"
#include "backend/base/log.h"
#include "backend/base/process_identity.h"
#include "backend/serve/direct_call.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/owner_watch.h"
#include "backend/serve/profiled_call.h"
#include "backend/transport/loop.h"
#include "backend/wire/own_requests.h"
#include "rref/backward.h"
#include "rref/failed_creation.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

cuda::DeviceRecord named(cuda::DeviceRecord record, const std::string& worker) {
  record.name = worker;
  record.host = ProcessIdentity::ofThisProcess().boot; // containers of one have the same
  return record;
}

} // namespace

Agent::Agent(
    c10::intrusive_ptr<c10d::Store> store, std::string name, worker_id_t id,
    std::optional<int> worldSize, AgentOptions options)
    : RpcAgent(
          WorkerInfo(std::move(name), id), std::make_unique<Dispatcher>(),
          fromSeconds(options.rpcTimeoutSeconds)),
      store_(std::move(store)),
      worldSize_(static_cast<uint32_t>(worldSize.value_or(0))),
      options_(std::move(options)),
      self_(id),
      pools_(options_.numWorkerThreads, options_.numSpareThreads),
      disposer_(pools_.control),
      dispatcher_(static_cast<Dispatcher&>(*cb_)),
      rrefs_(std::make_shared<RRefService>(dispatcher_, metrics_)),
      directory_(workerInfo_),
      devices_(std::make_shared<cuda::GroupDevices>(named(options_.devices, workerInfo_.name_))),
      transfers_(
          std::make_shared<cuda::Transfers>(
              self_, devices_, pools_.copies,
              options_.interceptors.empty()
                  ? ""
                  : "checksums or fault injection are on, which see what is in frames",
              options_.devicePathsLeftOut)),
      node_(
          nodeSettings(),
          {*this, timer_, metrics_->trace,
           [this](Task&& task) { return pools_.control->run(std::move(task)); },
           [this](Task&& task) { return pools_.deaths.run(std::move(task)); }}),
      bookkeeping_(
          {node_, timer_, pools_, disposer_, rrefs_, *metrics_, activeCalls_,
           [this] { return getRpcTimeout(); }}),
      engine_(
          std::make_shared<TorchEngine>(
              *this, pools_.evaluations, timer_, options_.backwardMode == BackwardMode::smart,
              metrics_)),
      contexts_(*this, engine_),
      caller_(
          {workerInfo_, rpcAgentRunning_, [this] { return getRpcTimeout(); }, node_, loop_, pools_,
           disposer_, directory_, activeCalls_, metrics_, devices_, transfers_, rrefs_, engine_,
           contexts_, bookkeeping_}) {
  beginFreshState(); // where there can be no thread, that shows here, and not when a call ends
  whereabouts_ = std::make_unique<Whereabouts>(whatWhereaboutsLookAt());
  lookAfterSlowCalls();
  keepErrorHandlersValid();
  registerHandlers();
  connectDeviceMessages(
      *transfers_, dispatcher_, pools_.copies,
      [this](WorkerId to, c10::intrusive_ptr<Message> request) {
        return send(getWorkerInfo(static_cast<worker_id_t>(to)), std::move(request));
      });
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
  dispatcher_.whenAnswering([this](WorkerId caller, const Message& answer) {
    return bookkeeping_.noteForks(caller, answer);
  });
  dispatcher_.orderStreams(options_.deviceStreamOrder);
  dispatcher_.runFunctionsOn([this](Task&& task) { return pools_.requests.run(std::move(task)); });
  dispatcher_.handleDirectCalls(
      [this](Message& request) { return serveDirectCall(dispatcher_, request); });
  serveCancels();
  serveObservers();
  serveProfiledCalls(dispatcher_);
  rrefs_->serve(dispatcher_);
  engine_->serve(dispatcher_);
  contexts_.serve(dispatcher_, [this](WorkerId caller) {
    return devices_->mapTo(caller, cuda::Direction::response);
  });
  rref::serveBackward(dispatcher_, engine_, rrefs_);
}

void Agent::serveCancels() {
  node_.ownCalls().handle(
      own_requests::kCancel,
      [this](WorkerId caller, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        runCallbacks(server_->cancel(caller, ByteReader(request).number<uint64_t>()));
        reply({});
      });
}

c10::intrusive_ptr<rpc::JitFuture> Agent::send(
    const WorkerInfo& to, c10::intrusive_ptr<Message> message, const float rpcTimeoutSeconds,
    const rpc::DeviceMap& deviceMap) {
  caller_.expectRunning(to, *message);
  if (!Bookkeeping::keeps(message->type())) {
    return caller_.send(to, std::move(message), rpcTimeoutSeconds, deviceMap);
  }
  auto future = caller_.futureOf(at::AnyClassType::get());
  bookkeeping_.send(to.id_, std::move(message), future);
  return future;
}

ThreadPool& Agent::poolOf(uint32_t messageType) {
  if (own_messages::isEvaluation(messageType)) {
    return pools_.evaluations;
  }
  return isControl(messageType) ? *pools_.control : pools_.requests;
}

// A request that came on the loop may run on the thread that has read it. Not what evaluates: libtorch marks the thread, and
// functions of the user's must not run on it afterwards (docs/gotchas.md).
bool Agent::runRequest(ThreadPool& pool, Task&& task) {
  return loop_->isLoopThread() && &pool != &pools_.evaluations
      ? loop_->runAside(std::move(task), pool)
      : pool.run(std::move(task));
}

// ---- workers ------------------------------------------------------------------------------------

const rpc::WorkerInfo& Agent::getWorkerInfo(const std::string& name) const {
  return directory_.byName(name);
}

const rpc::WorkerInfo& Agent::getWorkerInfo(worker_id_t id) const {
  return directory_.byId(id);
}

std::vector<rpc::WorkerInfo> Agent::getWorkerInfos() const {
  return directory_.all();
}

const std::vector<c10::Device>& Agent::getDevices() const {
  OwnerWatch::devicesAsked();
  return devices_->used();
}

rpc::DeviceMap Agent::getDeviceMap(const WorkerInfo& to) const {
  return devices_->mapTo(to.id_, cuda::Direction::request);
}

} // namespace torchwire
