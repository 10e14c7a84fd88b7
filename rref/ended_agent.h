// What libtorch's RRefContext has in the place of an agent between two RPC lifetimes.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace torchwire {

/// Remembers who was in the group of an agent that has ended, and throws where it is to send. libtorch asks it for the
/// owners of RRefs. Thread-safe.
class EndedAgent final : public torch::distributed::rpc::RpcAgent {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;

  explicit EndedAgent(const RpcAgent& ended);

  c10::intrusive_ptr<torch::distributed::rpc::JitFuture> send(
      const WorkerInfo& to, c10::intrusive_ptr<torch::distributed::rpc::Message> message,
      float rpcTimeoutSeconds, const torch::distributed::rpc::DeviceMap& deviceMap) override;
  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(torch::distributed::rpc::worker_id_t id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override {
    return workers_;
  }
  using RpcAgent::getWorkerInfo;

  void join(bool /*shutdown*/, float /*timeout*/) override {}
  void sync() override {}
  void startImpl() override {}
  void shutdownImpl() override {}
  std::unordered_map<std::string, std::string> getMetrics() override {
    return {};
  }

 private:
  void addGilWaitTime(const std::chrono::microseconds /*wait*/) override {}

  const std::vector<WorkerInfo> workers_;
};

} // namespace torchwire
