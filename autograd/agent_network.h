// The agent's calls as the network of backward passes.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>
#include <string>
#include <vector>

#include "autograd/pass/pass_network.h"
#include "backend/base/error.h"
#include "backend/base/thread_pool.h"
#include "backend/base/timer.h"

namespace torchwire {

/// Why a call of a pass has failed, or no error.
Error passErrorOf(const torch::distributed::rpc::JitFuture& future);

/// Thread-safe.
class AgentNetwork final : public PassNetwork {
 public:
  /// All three must outlive the network. Functions are evaluated on `pool`.
  AgentNetwork(torch::distributed::rpc::RpcAgent& agent, ThreadPool& pool, Timer& timer)
      : agent_(agent), pool_(pool), timer_(timer) {}

  WorkerId self() const override;
  std::string describe(WorkerId worker) const override;
  std::vector<WorkerId> peers() const override;
  void request(
      WorkerId to, PassRequest kind, std::vector<char> body, std::chrono::milliseconds limit,
      Answer answer) override;
  void later(std::chrono::milliseconds delay, Task task) override;
  void soon(Task task) override;

 private:
  torch::distributed::rpc::RpcAgent& agent_;
  ThreadPool& pool_;
  Timer& timer_;
};

} // namespace torchwire
