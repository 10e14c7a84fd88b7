// The graphs of libtorch's autograd contexts.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "autograd/pass/local_graph.h"

namespace torchwire {

/// Thread-safe.
class TorchGraphs final : public GraphSource {
 public:
  /// `agent` must outlive this.
  explicit TorchGraphs(const torch::distributed::rpc::RpcAgent& agent) : agent_(agent) {}

  bool has(int64_t context) override;
  std::unique_ptr<LocalGraph> open(const PassId& pass, const PassOptions& options) override;
  std::unique_ptr<GraphWalk> walk(int64_t context) override;
  std::vector<WorkerId> knownWorkers(int64_t context) override;

 private:
  const torch::distributed::rpc::RpcAgent& agent_;
};

} // namespace torchwire
