// The agent: PyTorch's RpcAgent on links. Start reading at docs/architecture.md.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/container.h"
#include "autograd/pass/backward_mode.h"
#include "autograd/torch_engine.h"
#include "backend/agent/bookkeeping.h"
#include "backend/agent/caller.h"
#include "backend/agent/pools.h"
#include "backend/agent/start_interruption.h"
#include "backend/agent/worker_directory.h"
#include "backend/agent/worker_events.h"
#include "backend/base/address.h"
#include "backend/base/buffer_pool.h"
#include "backend/base/bytes.h"
#include "backend/base/disposer.h"
#include "backend/base/fork.h"
#include "backend/base/thread_pool.h"
#include "backend/base/timer.h"
#include "backend/call/call_table.h"
#include "backend/call/metrics.h"
#include "backend/link/link_interceptor.h"
#include "backend/link/link_manager.h"
#include "backend/membership/membership.h"
#include "backend/node/group_end.h"
#include "backend/node/node.h"
#include "backend/node/whereabouts.h"
#include "backend/serve/direct_rref.h"
#include "backend/serve/dispatcher.h"
#include "backend/serve/server.h"
#include "backend/tensorpipe/tensorpipe_context.h"
#include "backend/transport/process_watch.h"
#include "backend/wire/key_ring.h"
#include "backend/wire/undo.h"
#include "cuda/device_record.h"
#include "cuda/group_devices.h"
#include "cuda/host_copies.h"
#include "cuda/transfer/transfers.h"
#include "rref/rref_service.h"

namespace torchwire {

class Loop;

struct AgentOptions {
  size_t numWorkerThreads = 16;
  size_t numSpareThreads = 256; // in the places of those that wait for calls
  float rpcTimeoutSeconds = 60; // 0: none
  std::string bindAddress; // "host" or "host:port"; empty: chosen by chooseAddress()
  std::string advertiseAddress; // empty: the bound address
  std::optional<std::vector<std::string>> transports;
  std::optional<std::vector<std::string>> channels;
  std::vector<std::string>
      secrets; // the group's: the first is used, all are accepted; none: it draws one
  Encryption encryption = Encryption::automatic;
  std::chrono::milliseconds keepAlive{10000}; // 0: none
  std::chrono::milliseconds sessionTimeout{10000}; // see LinkManager::Limits; 0: no sessions
  size_t maxUnacknowledgedBytes = size_t{64} << 20; // to one peer
  size_t receiveCache = size_t{256} << 20; // bytes of what BufferPool keeps
  size_t maxBytesInFlight = size_t{1}
      << 30; // of requests to one peer, see SendWindow; 0: unbounded
  BackwardMode backwardMode = BackwardMode::smart;
  std::vector<std::shared_ptr<LinkInterceptor>> interceptors; // the innermost first
  std::set<cuda::DevicePath> devicePathsLeftOut;
  bool inheritDeadline =
      false; // what functions call for a caller ends when that one's deadline is over
  std::shared_ptr<ThreadPool> storeThread; // see BoundedStore
  bool elastic = false; // whether a static group's workers may be replaced, and others join
  WorkerEvents workerEvents;
  std::chrono::milliseconds slowCallWarning{30000}; // 0: none
  // The stack of a thread, as pthread_self() has it, of Python's frames; empty: it has none. It may take the GIL.
  std::function<std::string(uint64_t thread)> stackOf = [](uint64_t) { return std::string(); };
  // Answers what an observer asks of this worker, on a thread that may block. Throws where it cannot.
  std::function<std::string(const std::string& question)> answer;
  cuda::DeviceRecord devices; // the worker's name is the agent's
  cuda::StreamOrder deviceStreamOrder = cuda::StreamOrder::none;
};

/// Runs everything of torch.distributed.rpc on a node. In five files: agent.cpp wires it, agent_start.cpp and
/// agent_shutdown.cpp are its beginning and its end, agent_program.cpp is what runs on the node, agent_metrics.cpp what it tells
/// about itself. Its calls are a Caller's. Thread-safe.
class Agent final : public torch::distributed::rpc::RpcAgent,
                    public EngineOwner,
                    private Node::Program,
                    public std::enable_shared_from_this<Agent> {
 public:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using worker_id_t = torch::distributed::rpc::worker_id_t;

  /// Opens nothing yet: start() does. `worldSize` unset: a dynamic group.
  /// Throws std::runtime_error for options that cannot work.
  Agent(
      c10::intrusive_ptr<c10d::Store> store, std::string name, worker_id_t id,
      std::optional<int> worldSize, AgentOptions options);
  ~Agent() override;

  /// Its calls.
  Caller& caller() {
    return caller_;
  }
  Bookkeeping& bookkeeping() {
    return bookkeeping_;
  }

  c10::intrusive_ptr<JitFuture> send(
      const WorkerInfo& to, c10::intrusive_ptr<Message> message,
      const float rpcTimeoutSeconds = torch::distributed::rpc::kUnsetRpcTimeout,
      const torch::distributed::rpc::DeviceMap& deviceMap = {}) override;

  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(worker_id_t id) const override;
  using RpcAgent::getWorkerInfo;
  std::vector<WorkerInfo> getWorkerInfos() const override;
  const std::vector<c10::Device>& getDevices() const override;
  torch::distributed::rpc::DeviceMap getDeviceMap(const WorkerInfo& to) const override;

  /// A static group: returns once every worker has called this that is not dead. A dynamic one: at once.
  /// Throws std::runtime_error that names a worker whose process is gone, or when `timeout` seconds
  /// (0: no limit) are over. As all that waits on behalf of the program, it throws Interrupted where a handler of a signal
  /// raises; the others then throw a sentence that says so.
  void waitAllWorkers(float timeout);
  /// Has the others throw that sentence, where this worker does not go on with the shutdown.
  void interruptShutdown();
  /// Lets go what libtorch would wait for, of RRefs, though it has been lost. Of a static group all workers call it, after
  /// waitAllWorkers(), and it throws as that does. `patience`: for the others to say what they hold.
  void settleRRefs(float timeout, std::chrono::milliseconds patience);

  /// A static group: returns when no call of any worker is active any more. A dynamic one: leaves it.
  void join(bool shutdown = false, float timeout = 0) override;
  void sync() override {}
  void startImpl() override;
  /// Whether startImpl() has come so far that it tells the others why it fails. For the thread that starts.
  bool hasBegunToStart() const {
    return membership_ != nullptr;
  }
  /// Ends a start that another thread is in, at its next wait. Returns once it is over, or after `patience`.
  void interruptStart(std::chrono::milliseconds patience) {
    start_->interrupt(patience);
  }
  /// Why shutdown() will be called: what its peers' errors say of it.
  void explainLeave(Goodbye goodbye);
  /// The processes on this host, which have not ended yet, of peers that left since they would.
  std::vector<int32_t> endingProcesses() const;
  void shutdownImpl() override;

  std::unordered_map<std::string, std::string> getMetrics() override;
  std::unordered_map<std::string, std::string> getDebugInfo() override;
  std::vector<PeerStatus> peers() const;

  /// The group's secrets are others from now on: this worker uses the first, and accepts all. On any thread that may block.
  /// Throws std::runtime_error.
  void changeSecrets(const std::vector<std::string>& secrets);
  /// By which the secrets are told apart, in the group: the first is of the one that this worker uses. None before it starts.
  std::vector<std::string> secretLabels() const;

  /// What has been counted. What a worker that has not started has nothing of is 0.
  struct Counts {
    int64_t callsInFlight = 0;
    int64_t requestsActive = 0; // that came and are not answered
    int64_t requestsAsync = 0; // of these, whose function has left a future
    int64_t requestsCancelled = 0;
    uint64_t threads = 0; // for requests, at most
    uint64_t threadsIdle = 0;
    int64_t gilWaits = 0;
    std::chrono::microseconds gilWait{0};
    uint64_t strangersRejected = 0;
    uint64_t backwardPasses = 0;
    size_t bytesInFlight = 0; // of requests that count, see AgentOptions::maxBytesInFlight
    size_t requestsWaiting = 0; // for room
    size_t bufferBytesLent = 0, bufferBytesKept = 0;
  };
  Counts counts() const;
  CallMetrics& callMetrics() {
    return *metrics_;
  }
  /// Calls of this worker that are under way, and requests of peers that are not answered; the oldest first.
  std::vector<CallTable::Pending> pendingCalls() const {
    return node_.calls().pending();
  }
  std::vector<ServedCalls::Status> servedCalls() const {
    return server_ ? server_->served().all() : std::vector<ServedCalls::Status>();
  }
  /// What the worker's AgentOptions::answer says to the question. On a thread that may block, without the GIL. Not one of
  /// the calls that shutdown waits for. Throws std::runtime_error where there is no answer within `patience`.
  std::string askObserver(
      WorkerId to, const std::string& question, std::chrono::milliseconds patience);
  /// Where calls are: each in a sentence, or with a stack behind it.
  const Whereabouts& whereabouts() const {
    return *whereabouts_;
  }
  /// Which way large tensors take to the worker, by each entry of the device map for it.
  std::vector<cuda::DevicePaths::Explanation> explainDevices(WorkerId peer) const {
    return transfers_->explain(peer);
  }

  /// Whether this process was forked from the agent's, and has only a copy of it.
  bool isInherited() const {
    return forkGeneration() != generation_;
  }

  /// Drives the backward passes in which this worker takes part.
  Engine& engine() override {
    return *engine_;
  }

  /// The autograd contexts of this worker.
  Container& contexts() {
    return contexts_;
  }

  bool isStaticGroup() const {
    return worldSize_ != 0;
  }
  /// Whether workers may come once the group runs.
  bool isOpen() const {
    return !isStaticGroup() || options_.elastic;
  }
  RRefService& rrefs() {
    return *rrefs_;
  }
  const c10::intrusive_ptr<c10d::Store>& store() const {
    return store_;
  }

 private:
  void addGilWaitTime(const std::chrono::microseconds wait) override;

  void registerHandlers();
  void serveCancels();
  void runCallbacks(CancelledCalls::Tasks callbacks);

  ThreadPool& poolOf(uint32_t messageType);
  bool runRequest(ThreadPool& pool, Task&& task);

  // Starting.
  void openMembership();
  void joinGroup();
  void startThreads();
  void beginIdsElsewhere();
  void openLinks(const std::vector<GroupKey>& keys);
  TensorPipeOptions linkSettings();
  void startServer();
  std::shared_ptr<Link> loopback();
  void checkDevices();
  void enter(const std::string& address);
  void prepareToEncrypt(const Roster& roster);

  // Node::Program, in agent_program.cpp.
  Node::Settings nodeSettings() const;
  bool serve(WorkerId caller, ReceivedFrame request) override;
  bool serveOwn(Task&& task) override;
  void dropResponse(WorkerId from, ReceivedFrame response) override;
  void requestUnsent(WorkerId to) override;
  void await(Waiter& waiter) override;
  std::optional<Refusal> admit(const WorkerRecord& worker) override;
  void peerJoined(const WorkerRecord& peer) override;
  void peerLost(WorkerId peer, const Error& error) override;
  void peerGone(const WorkerRecord& peer, const Error& error) override;
  std::string describe(WorkerId worker) const override;
  std::string nameOf(WorkerId worker) const override;
  std::chrono::milliseconds storeTimeout() const override;

  // Where calls are.
  Whereabouts::Worker whatWhereaboutsLookAt();
  void lookAfterSlowCalls();
  void serveObservers();

  // Ending.
  bool awaitPools();
  void joinPools();
  void warnOfRunning() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const uint32_t worldSize_; // 0: dynamic
  const AgentOptions options_;
  const uint64_t generation_ = forkGeneration();
  WorkerId self_;
  const std::shared_ptr<CallMetrics> metrics_ = std::make_shared<CallMetrics>();
  ChosenAddress chosen_;
  std::string address_;

  Timer timer_;
  Pools pools_;
  const Disposer disposer_;
  Dispatcher& dispatcher_; // the base class owns it
  const std::shared_ptr<RRefService> rrefs_;
  ActiveCalls activeCalls_;
  WorkerDirectory directory_;
  const std::shared_ptr<cuda::GroupDevices> devices_;
  const std::shared_ptr<cuda::Transfers> transfers_;
  std::shared_ptr<BufferPool> buffers_; // from the start on
  std::shared_ptr<Loop> loop_; // from the start on
  std::unique_ptr<ProcessWatch> processes_; // of peers on this host; from the start on
  const std::shared_ptr<StartInterruption> start_ = std::make_shared<StartInterruption>();
  std::unique_ptr<LinkContext> context_; // from the start on
  std::unique_ptr<Membership> membership_; // from the start on
  Node node_;
  Bookkeeping bookkeeping_;
  std::unique_ptr<GroupEnd> end_; // from the start on
  std::shared_ptr<Server> server_;
  std::shared_ptr<KeyRing> keys_; // from the start on
  std::unique_ptr<Whereabouts> whereabouts_; // of calls
  const std::shared_ptr<TorchEngine>
      engine_; // what RRefs that have no value yet wait with holds it weakly
  Container contexts_;
  Caller caller_;
  bool hasDoubtfulForks_ = false; // any worker, when all met
};

} // namespace torchwire
