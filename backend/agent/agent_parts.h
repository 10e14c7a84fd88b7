// What an agent is made of, and its classes work with.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "autograd/container.h"
#include "autograd/torch_engine.h"
#include "backend/agent/agent_options.h"
#include "backend/agent/pools.h"
#include "backend/agent/worker_directory.h"
#include "backend/base/address.h"
#include "backend/base/buffer_pool.h"
#include "backend/base/disposer.h"
#include "backend/base/fork.h"
#include "backend/base/timer.h"
#include "backend/call/metrics.h"
#include "backend/link/link.h"
#include "backend/membership/membership.h"
#include "backend/node/group_end.h"
#include "backend/node/node.h"
#include "backend/serve/dispatcher.h"
#include "backend/serve/server.h"
#include "backend/transport/process_watch.h"
#include "backend/wire/key_ring.h"
#include "cuda/group_devices.h"
#include "cuda/transfer/transfers.h"
#include "rref/rref_service.h"

namespace torchwire {

class Loop;

/// Outlives all that works with it. Each part is as thread-safe as its class says.
struct AgentParts {
  using RpcAgent = torch::distributed::rpc::RpcAgent;

  /// What the agent has from PyTorch's class.
  struct Inherited {
    RpcAgent& agent;
    const torch::distributed::rpc::WorkerInfo& self;
    const std::atomic<bool>& isRunning;
    Dispatcher& dispatcher;
  };

  /// As Agent's. `program` is not called yet.
  AgentParts(
      Inherited inherited, c10::intrusive_ptr<c10d::Store> store, std::optional<int> worldSize,
      AgentOptions options, Node::Program& program);

  bool isStaticGroup() const {
    return worldSize != 0;
  }
  /// Whether workers may come once the group runs.
  bool isOpen() const {
    return !isStaticGroup() || options.elastic;
  }
  /// Of a call, where nothing else is said; 0: none.
  std::chrono::milliseconds rpcTimeout() const {
    return agent.getRpcTimeout();
  }
  std::chrono::milliseconds storeTimeout() const;
  /// Whether this process was forked from the agent's, and has only a copy of it.
  bool isInherited() const {
    return forkGeneration() != generation;
  }
  /// Throws there what a call fails with.
  void expectOwnProcess() const;
  /// Runs a request that came on the loop, perhaps on the thread that has read it. False: none can run it any more.
  bool runRequest(ThreadPool& pool, Task&& task);

  RpcAgent& agent;
  const torch::distributed::rpc::WorkerInfo& self;
  const std::atomic<bool>& isRunning;
  Dispatcher& dispatcher;
  const c10::intrusive_ptr<c10d::Store> store;
  const uint32_t worldSize; // 0: dynamic
  const AgentOptions options;
  const uint64_t generation = forkGeneration();

  const std::shared_ptr<CallMetrics> metrics = std::make_shared<CallMetrics>();
  ActiveCalls activeCalls;
  Timer timer;
  Pools pools;
  const Disposer disposer;
  const std::shared_ptr<RRefService> rrefs;
  WorkerDirectory directory;
  const std::shared_ptr<cuda::GroupDevices> devices;
  const std::shared_ptr<cuda::Transfers> transfers;

  // From the start on; empty or null before.
  ChosenAddress chosen;
  std::string address;
  std::shared_ptr<BufferPool> buffers;
  std::shared_ptr<Loop> loop;
  std::unique_ptr<ProcessWatch> processes; // of peers on this host
  std::unique_ptr<LinkContext> context;
  std::unique_ptr<Membership> membership;
  std::shared_ptr<KeyRing> keys;

  Node node;

  // From the start on; null before.
  std::unique_ptr<GroupEnd> groupEnd;
  std::shared_ptr<Server> server;

  const std::shared_ptr<TorchEngine>
      engine; // what RRefs that have no value yet wait with holds it weakly
  Container contexts;
};

} // namespace torchwire
