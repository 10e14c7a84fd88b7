// The engine of a worker, on libtorch's autograd and the agent's calls.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/engine.h"
#include "autograd/graph_task.h"
#include "autograd/pass/local_graph.h"
#include "autograd/pass/pass_network.h"
#include "autograd/pass/pass_table.h"
#include "backend/base/timer.h"
#include "backend/base/thread_pool.h"

namespace torchwire {

/// Thread-safe.
class TorchEngine final : public Engine, private GraphSource, private PassNetwork {
 public:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using MessagePtr = c10::intrusive_ptr<Message>;
  using FuturePtr = c10::intrusive_ptr<JitFuture>;

  /// `smart`: the mode of the passes that start here. All three must outlive the engine, which is to be shut down
  /// before any of them.
  /// Functions are evaluated on `pool` alone: libtorch marks a thread that has evaluated a GraphTask of a distributed
  /// pass, and takes every later backward on it for a nested one.
  TorchEngine(torch::distributed::rpc::RpcAgent& agent, ThreadPool& pool, Timer& timer, bool smart);

  void start(
      int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph,
      Done done) override;
  void contextReleased(int64_t contextId) override;
  uint64_t passesStarted() const override;
  std::optional<std::string> describePass(int64_t contextId) override;

  /// A recv function is about to send: its request in torchwire's form, and the pass that is to wait for the answer.
  /// Throws std::runtime_error when no pass of torchwire's runs in its context.
  std::pair<MessagePtr, std::shared_ptr<Pass>> gradientsRequest(MessagePtr message);
  static void track(const std::shared_ptr<Pass>& pass, const FuturePtr& future);

  /// Serves the requests between engines (own_messages.h) on the calling thread, one of the pool's.
  FuturePtr serve(WorkerId caller, const Message& request);

  /// A worker is gone: ends the passes that it has started.
  void peerLost(WorkerId peer);

  /// Ends all passes. Whoever waits for one gets an error. None begins any more.
  void shutDown();

 private:
  FuturePtr serveGradients(const Message& request);
  FuturePtr serveDiscover(const Message& request);
  FuturePtr serveResume(const Message& request);
  FuturePtr serveEndPass(WorkerId caller, const Message& request);

  // GraphSource
  bool has(int64_t context) override;
  std::unique_ptr<LocalGraph> open(const PassId& pass, const PassOptions& options) override;
  std::unique_ptr<GraphWalk> walk(int64_t context) override;
  std::vector<WorkerId> knownWorkers(int64_t context) override;

  // PassNetwork
  WorkerId self() const override;
  std::string describe(WorkerId worker) const override;
  std::vector<WorkerId> peers() const override;
  void request(
      WorkerId to, PassRequest kind, std::vector<char> body, std::chrono::milliseconds limit,
      Answer answer) override;
  void later(std::chrono::milliseconds delay, Task task) override;
  void soon(Task task) override;

  torch::distributed::rpc::RpcAgent& agent_;
  ThreadPool& pool_;
  Timer& timer_;
  const bool smart_;
  const std::shared_ptr<PassTable> passes_;
};

} // namespace torchwire
