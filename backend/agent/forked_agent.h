// The current agent of a process that was forked from a worker.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/engine.h"

namespace torchwire {

/// Takes the place of the parent's agent, whose threads a child does not have and whose connections are the parent's:
/// sends nothing, and says why. Thread-safe.
class ForkedAgent final : public torch::distributed::rpc::RpcAgent, public EngineOwner {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;

  explicit ForkedAgent(WorkerInfo parent);

  /// From now on children of this process, which is `worker`, begin with such an agent as the current one; with none
  /// other than the current one then, if that is not torchwire's. Lasts until endForChildren(). Thread-safe.
  static void standInForChildrenOf(const WorkerInfo& worker);
  static void endForChildren();

  /// The current agent, where it is one of these; null: it is not, or there is none.
  static std::shared_ptr<ForkedAgent> current();

  /// "this process was forked from worker 'w' after init_rpc; ...", with the remedy.
  const std::string& refusal() const {
    return refusal_;
  }

  /// The same of the current agent; what a process can be told that has none.
  static std::string refusalHere();

  /// Throws std::runtime_error with refusal(), as do the three below.
  c10::intrusive_ptr<torch::distributed::rpc::JitFuture> send(
      const WorkerInfo& to, c10::intrusive_ptr<torch::distributed::rpc::Message> message,
      float rpcTimeoutSeconds, const torch::distributed::rpc::DeviceMap& deviceMap) override;
  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(torch::distributed::rpc::worker_id_t id) const override;
  using RpcAgent::getWorkerInfo;
  Engine& engine() override;
  std::vector<WorkerInfo> getWorkerInfos() const override {
    return {workerInfo_};
  }

  void join(bool /*shutdown*/, float /*timeout*/) override {}
  void sync() override {}
  void startImpl() override {}
  void shutdownImpl() override {}
  std::unordered_map<std::string, std::string> getMetrics() override {
    return {};
  }

 private:
  void addGilWaitTime(const std::chrono::microseconds /*wait*/) override {}

  const std::string refusal_;
};

} // namespace torchwire
