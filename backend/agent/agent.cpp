#include "backend/agent/agent.h"

#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "autograd/context_lifetime.h"
#include "autograd/forward_call.h"
#include "backend/agent/call_end.h"
#include "backend/agent/failed_start.h"
#include "backend/agent/forked_agent.h"
#include "backend/agent/observer_answers.h"
#include "backend/agent/seconds.h"
#include "backend/agent/torch_store.h"
#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/base/process_identity.h"
#include "backend/base/random.h"
#include "backend/base/resource_limits.h"
#include "backend/link/loopback_link.h"
#include "backend/membership/bounded_store.h"
#include "backend/serve/direct_call.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/owner_watch.h"
#include "backend/serve/profiled_call.h"
#include "backend/serve/python_thread.h"
#include "backend/serve/response.h"
#include "backend/serve/signals.h"
#include "backend/tensorpipe/observers.h"
#include "backend/transport/loop.h"
#include "backend/wire/record_cipher.h"
#include "rref/backward.h"
#include "rref/context_lifetime.h"
#include "rref/failed_creation.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

// A session goes on over another connection sooner than TCP finds its way again: that asks ever more rarely.
constexpr milliseconds kLossTimeout{1800};
// Workers of a group start minutes apart on a busy cluster, whatever their time-out for calls is.
constexpr milliseconds kMinWaitForGroup{60000};

// Not num_worker_threads: a hook may start a pass in another context and wait for it, which takes a thread for each level. Only
// those are started that are needed at a time.
constexpr size_t kMaxEvaluations = 256;

// Threads that wait for copies from devices to the host: such of several devices, and of one behind work of different
// lengths, should not wait for each other. Only those are started that are needed at a time.
constexpr size_t kMaxCopies = 64;

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
      requests_(
          options_.numWorkerThreads, "torchwire_work", runOnPythonThread, options_.numSpareThreads),
      control_(
          std::make_shared<ThreadPool>(
              options_.numWorkerThreads, "torchwire_ctrl", runOnPythonThread)),
      disposer_(control_),
      evaluations_(kMaxEvaluations, "torchwire_grad", runOnPythonThread),
      completions_(
          options_.numWorkerThreads, "torchwire_done", runOnPythonThread, options_.numSpareThreads),
      dispatcher_(static_cast<Dispatcher&>(*cb_)),
      rrefs_(std::make_shared<RRefService>(dispatcher_, metrics_)),
      directory_(workerInfo_),
      devices_(std::make_shared<cuda::GroupDevices>(named(options_.devices, workerInfo_.name_))),
      deaths_(1, "torchwire_dead"),
      copies_(std::make_shared<ThreadPool>(kMaxCopies, "torchwire_copy", runOnPythonThread)),
      transfers_(
          std::make_shared<cuda::Transfers>(
              self_, devices_, copies_,
              options_.interceptors.empty()
                  ? ""
                  : "checksums or fault injection are on, which see what is in frames",
              options_.devicePathsLeftOut)),
      node_(
          nodeSettings(),
          {*this, timer_, metrics_->trace,
           [this](Task&& task) { return control_->run(std::move(task)); },
           [this](Task&& task) { return deaths_.run(std::move(task)); }}),
      bookkeeping_(
          {timer_, [this](Task&& task) { return control_->run(std::move(task)); },
           [this](WorkerId to) { return node_.links()->incarnationOf(to); },
           [this] { return node_.isClosed(); }}),
      engine_(
          std::make_shared<TorchEngine>(
              *this, evaluations_, timer_, options_.backwardMode == BackwardMode::smart, metrics_)),
      contexts_(*this, engine_) {
  beginFreshState(); // where there can be no thread, that shows here, and not when a call ends
  whereabouts_ = std::make_unique<Whereabouts>(whatWhereaboutsLookAt());
  lookAfterSlowCalls();
  keepErrorHandlersValid();
  registerHandlers();
  connectTransfers();
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
  dispatcher_.whenAnswering(
      [this](WorkerId caller, const Message& answer) { return noteForks(caller, answer); });
  dispatcher_.orderStreams(options_.deviceStreamOrder);
  dispatcher_.runFunctionsOn([this](Task&& task) { return requests_.run(std::move(task)); });
  dispatcher_.handleDirectCalls(
      [this](Message& request) { return serveDirectCall(dispatcher_, request); });
  node_.calls().whenLimitedExpire([this](const CallTable::Key& call) {
    // Elsewhere than on the timer's thread: who sends may drop what is Python's.
    control_->run([this, call] { tellCancelled(call.to, call.id); });
  });
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

void Agent::connectTransfers() {
  transfers_->connect(
      {[this](WorkerId to, std::vector<char> body) {
         tellOfTransfers(to, std::move(body), own_messages::kBlocksDone, [](const std::string&) {});
       },
       [this](
           WorkerId to, std::vector<char> body,
           std::function<void(const std::string& error)> done) {
         tellOfTransfers(to, std::move(body), own_messages::kMemoryTrial, std::move(done));
       },
       [this](
           WorkerId to, std::vector<char> body,
           std::function<void(const std::string& error)> done) {
         tellOfTransfers(to, std::move(body), own_messages::kLaneTrial, std::move(done));
       },
       [this](
           WorkerId to, std::vector<char> body,
           std::function<void(const std::string& error)> done) {
         tellOfTransfers(to, std::move(body), own_messages::kLaneMessage, std::move(done));
       }});
  dispatcher_.handleOwn(own_messages::kBlocksDone, [this](WorkerId caller, Message& request) {
    transfers_->onDone(caller, std::as_const(request).payload());
    return completed(messageOf({}, own_messages::kNoted));
  });
  dispatcher_.handleOwn(own_messages::kLaneMessage, [this](WorkerId caller, Message& request) {
    transfers_->onLaneMessage(caller, std::as_const(request).payload());
    return completed(messageOf({}, own_messages::kNoted));
  });
  serveTrials(own_messages::kMemoryTrial, &cuda::Transfers::onTrial);
  serveTrials(own_messages::kLaneTrial, &cuda::Transfers::onLaneTrial);
}

/// On threads that may wait for devices.
void Agent::serveTrials(
    rpc::MessageType type,
    void (cuda::Transfers::*onTrial)(WorkerId from, const std::vector<char>& body)) {
  dispatcher_.handleOwn(type, [this, onTrial](WorkerId caller, Message& request) {
    auto answer = c10::make_intrusive<JitFuture>(messageType());
    Task task([this, onTrial, caller, body = std::as_const(request).payload(), answer] {
      try {
        (*transfers_.*onTrial)(caller, body);
        torchwire::complete(*answer, messageOf({}, own_messages::kNoted));
      } catch (const std::exception&) {
        answer->setErrorIfNeeded(std::current_exception());
      }
    });
    if (!copies_->run(std::move(task))) {
      throw std::runtime_error("this worker shuts down");
    }
    return answer;
  });
}

// ---- starting -----------------------------------------------------------------------------------

void Agent::startImpl() {
  expectOwnProcess();
  const StartInterruption::Scope starting(*start_);
  openMembership();
  try {
    joinGroup();
  } catch (const Interrupted&) {
    membership_->giveUpStart(membership_->self().describe() + " was interrupted in init_rpc");
    throw;
  } catch (const std::exception& e) {
    membership_->giveUpStart(describeFailedStart(membership_->self(), e.what()));
    throw;
  }
}

void Agent::joinGroup() {
  const auto self = isCurrentRpcAgentSet() ? getCurrentRpcAgent() : nullptr;
  const bool another = self.get() == this && beginRRefs(self); // it is not in tests without Python
  if (another) {
    endContexts();
  }
  contexts_.forgetEarlierGroup();
  if (isOpen() || another) {
    beginIdsElsewhere();
  }
  startThreads();
  openLinks(membership_->agree(options_.secrets));
  enter(node_.links()->listen());
  if (!isStaticGroup() || membership_->cameLater()) {
    node_.introduce(checkSignals);
  }
}

// Where there can be no more of them, that shows here and not in a callback; and what a process that comes to its limit
// later has suffices to serve.
void Agent::startThreads() {
  timer_.after(milliseconds(0), [] {});
  freshState(); // so that a child that is forked later has it, too
  for (ThreadPool* pool : {&requests_, control_.get(), &evaluations_, &deaths_}) {
    if (!pool->run([] {})) {
      throw std::runtime_error(threadLimits());
    }
  }
}

// libtorch counts them from 0 in each process. One that comes in place of another, or as another worker than before, would
// give the ids again that are still in use elsewhere.
void Agent::beginIdsElsewhere() {
  rrefs_->beginIdsAt(randomNumber());
  contexts_.beginIdsAt(randomNumber());
}

void Agent::openMembership() {
  WorkerRecord self = ownRecord(workerInfo_.name_, self_);
  self.devices = devices_->encodedSelf();
  for (const auto& interceptor : options_.interceptors) {
    self.linkOptions |= interceptor->linkOption();
  }
  if (isStaticGroup() && options_.elastic) {
    self.linkOptions |= link_options::kElastic;
  }
  if (options_.encryption == Encryption::off) {
    self.linkOptions |= link_options::kUnencrypted;
  }
  const InterruptionCheck check = [start = start_] { start->check(); };
  membership_ = std::make_unique<Membership>(
      std::make_unique<BoundedStore>(
          std::make_unique<TorchStore>(store_), storeTimeout(), check, options_.storeThread),
      std::move(self), worldSize_, std::max(getRpcTimeout(), kMinWaitForGroup),
      std::make_unique<SystemClock>(check), [this](const WorkerRecord& worker, bool asksHost) {
        return hasEnded(worker, address_, asksHost);
      });
}

// Peers are let in by the new keys before anything is said under them.
void Agent::changeSecrets(const std::vector<std::string>& secrets) {
  expectOwnProcess();
  if (options_.secrets.empty() || secrets.empty() || !keys_) {
    throw std::runtime_error(
        "this worker cannot change the group's secret: it has not started, or has none of its own");
  }
  const std::vector<GroupKey> keys = membership_->keysOf(secrets);
  keys_->replace(keys);
  membership_->changeKeys(keys);
}

std::vector<std::string> Agent::secretLabels() const {
  std::vector<std::string> labels;
  for (const GroupKey& key : keys_ ? keys_->all() : std::vector<GroupKey>()) {
    labels.push_back(key.label());
  }
  return labels;
}

TensorPipeOptions Agent::linkSettings() {
  chosen_ = chooseAddress(options_.bindAddress, hostOfStore(store_));
  TensorPipeOptions options;
  options.workerName = workerInfo_.name_;
  options.bindAddress = chosen_.address;
  if (!options_.advertiseAddress.empty()) {
    options.advertiseAddress = resolve(options_.advertiseAddress);
  }
  if (options.advertiseAddress.empty() && isWildcard(chosen_.address)) {
    options.advertiseAddress = chooseAddress("", hostOfStore(store_)).address;
  }
  options.transports = options_.transports;
  options.channels = options_.channels;
  options.keys = keys_;
  options.encryption = options_.encryption;
  options.keepAlive = options_.keepAlive;
  if (options_.sessionTimeout.count() != 0) {
    options.lossTimeout = kLossTimeout;
  }
  options.loop = loop_;
  for (const auto& interceptor : options_.interceptors) {
    if (auto ofChannels = std::dynamic_pointer_cast<ChannelInterceptor>(interceptor)) {
      options.interceptors.push_back(std::move(ofChannels));
    }
  }
  return options;
}

void Agent::openLinks(const std::vector<GroupKey>& keys) {
  keys_ = std::make_shared<KeyRing>(keys);
  loop_ = Loop::start("torchwire_io");
  processes_ = std::make_unique<ProcessWatch>(loop_);
  evaluations_.driveWhenIdle(loop_, [engine = engine_] { return engine->hasPasses(); });
  buffers_ = std::make_shared<BufferPool>(options_.receiveCache, timer_);
  context_ = makeTensorPipeContext(linkSettings(), buffers_, timer_);
  LinkContext& innermost = *context_;
  for (const auto& interceptor : options_.interceptors) {
    context_ = interceptor->wrap(std::move(context_), timer_);
  }
  node_.open(*context_, *processes_, *membership_);
  end_ =
      std::make_unique<GroupEnd>(GroupEnd::Worker{node_, *membership_, activeCalls_, checkSignals});
  startServer();
  // Not before there are links and a server: answers tell of them.
  admitObservers(innermost, answersForObservers(copies_, options_.answer));
  node_.links()->addLoopback(membership_->self(), loopback());
}

std::shared_ptr<Link> Agent::loopback() {
  std::shared_ptr<Link> link = std::make_shared<LoopbackLink>();
  for (const auto& interceptor : options_.interceptors) {
    link = interceptor->wrapLoopback(std::move(link), timer_);
  }
  return link;
}

// What sends the responses is not bound to this agent: a handler may complete its future, and so answer, when the agent
// is gone.
void Agent::startServer() {
  server_ = std::make_shared<Server>(
      dispatcher_,
      [this](uint32_t messageType, Task&& task) {
        return runRequest(poolOf(messageType), std::move(task));
      },
      disposer_,
      [links = node_.links(), transfers = transfers_](WorkerId caller, OutgoingFrame frame) {
        links->sendIfConnected(caller, std::move(frame), [transfers, caller](const Error& error) {
          if (error) {
            transfers->peerLost(caller); // no tickets in the response will be heard of
            log(LogLevel::info, "a response was not sent: " + error.message());
          }
        });
      },
      devices_, transfers_, copies_, metrics_, options_.inheritDeadline);
  server_->dropRequestsIf([links = node_.links()](WorkerId caller, uint64_t incarnation) {
    return links->isFormer(caller, incarnation);
  });
}

void Agent::enter(const std::string& address) {
  address_ = address;
  log(LogLevel::info,
      "worker '" + workerInfo_.name_ + "' listens at " + address_ + " (" + chosen_.reason + ")");
  const Roster roster = membership_->join(address_, context_->hostAddress());
  devices_->add(roster.workers);
  for (const WorkerRecord& worker : roster.workers) {
    directory_.add(worker);
  }
  node_.begin(roster);
  prepareToEncrypt(roster);
  checkDevices();
}

/// Loading the ciphers takes a millisecond, for which the first call would wait. A group that encrypts nothing does not
/// load them.
void Agent::prepareToEncrypt(const Roster& roster) {
  const std::string& here = membership_->self().onHost.host;
  const bool encrypts =
      options_.encryption != Encryption::off &&
      std::any_of(roster.workers.begin(), roster.workers.end(), [&](const WorkerRecord& worker) {
        return options_.encryption == Encryption::on || worker.onHost.host != here;
      });
  if (encrypts) {
    loop_->post([] { loadRecordCiphers(); });
  }
}

// All workers of a static group find the same, and those of a dynamic one were fine before this one came.
void Agent::checkDevices() {
  if (const auto objection = devices_->objection(isStaticGroup())) {
    if (isOpen()) {
      membership_->leave();
    }
    throw std::invalid_argument(*objection);
  }
}

ThreadPool& Agent::poolOf(uint32_t messageType) {
  if (own_messages::isEvaluation(messageType)) {
    return evaluations_;
  }
  return isControl(messageType) ? *control_ : requests_;
}

// A request that came on the loop may run on the thread that has read it. Not what evaluates: libtorch marks the thread, and
// functions of the user's must not run on it afterwards (docs/gotchas.md).
bool Agent::runRequest(ThreadPool& pool, Task&& task) {
  return loop_->isLoopThread() && &pool != &evaluations_ ? loop_->runAside(std::move(task), pool)
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
