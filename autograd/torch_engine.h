// The engine of a worker, on libtorch's autograd and the agent's calls.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "autograd/agent_network.h"
#include "autograd/backward_trace.h"
#include "autograd/engine.h"
#include "autograd/graph_task.h"
#include "autograd/pass/pass_table.h"
#include "autograd/torch_graphs.h"
#include "backend/base/thread_pool.h"
#include "backend/base/timer.h"
#include "backend/serve/dispatcher.h"

namespace torchwire {

/// Thread-safe.
class TorchEngine final : public Engine {
 public:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using MessagePtr = c10::intrusive_ptr<Message>;
  using FuturePtr = c10::intrusive_ptr<JitFuture>;

  /// `smart`: the mode of the passes that start here. All three must outlive the engine, which is to be shut down
  /// before any of them.
  /// Functions are evaluated on `pool` alone: libtorch marks a thread that has evaluated a GraphTask of a distributed
  /// pass, and takes every later backward on it for a nested one.
  TorchEngine(
      torch::distributed::rpc::RpcAgent& agent, ThreadPool& pool, Timer& timer, bool smart,
      std::shared_ptr<CallMetrics> metrics);

  void start(
      int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph,
      Done done) override;
  void cancel(int64_t contextId) override;
  void contextReleased(int64_t contextId) override;
  uint64_t passesStarted() const override;
  std::optional<std::string> describePass(int64_t contextId) override;

  /// A recv function is about to send: its request in torchwire's form, and the pass that is to wait for the answer.
  /// Throws std::runtime_error when no pass of torchwire's runs in its context.
  std::pair<MessagePtr, std::shared_ptr<Pass>> gradientsRequest(MessagePtr message);
  static void track(const std::shared_ptr<Pass>& pass, const FuturePtr& future);

  /// Registers the handlers of other engines' requests.
  void serve(Dispatcher& dispatcher);

  /// A worker is gone: ends the passes that it has started.
  void peerLost(WorkerId peer);

  /// Whether a pass runs here: then its next gradients are about to come. Takes no lock.
  bool hasPasses() const {
    return passes_->anyRuns();
  }

  /// Ends all passes. Whoever waits for one gets an error. None begins any more.
  void shutDown(const std::string& reason = {});

 private:
  torch::distributed::rpc::RpcAgent& agent_;
  const bool smart_;
  TorchGraphs graphs_;
  AgentNetwork network_;
  const BackwardTrace trace_;
  const std::shared_ptr<PassTable> passes_;
};

} // namespace torchwire
