// The agent: PyTorch's RpcAgent on links. Start reading at docs/architecture.md.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/engine.h"
#include "backend/agent/agent_end.h"
#include "backend/agent/agent_options.h"
#include "backend/agent/agent_parts.h"
#include "backend/agent/agent_report.h"
#include "backend/agent/agent_start.h"
#include "backend/agent/bookkeeping.h"
#include "backend/agent/caller.h"
#include "backend/agent/node_program.h"

namespace torchwire {

/// Runs everything of torch.distributed.rpc on a node, and is what PyTorch sees of it. Thread-safe.
class Agent final : public torch::distributed::rpc::RpcAgent,
                    public EngineOwner,
                    public std::enable_shared_from_this<Agent> {
 public:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using DeviceMap = torch::distributed::rpc::DeviceMap;
  using worker_id_t = torch::distributed::rpc::worker_id_t;

  /// Opens nothing yet: start() does. `worldSize` unset: a dynamic group.
  /// Throws std::runtime_error for options that cannot work.
  Agent(
      c10::intrusive_ptr<c10d::Store> store, std::string name, worker_id_t id,
      std::optional<int> worldSize, AgentOptions options);
  ~Agent() override;

  AgentParts& parts() {
    return parts_;
  }
  const AgentParts& parts() const {
    return parts_;
  }
  Caller& caller() {
    return caller_;
  }
  Bookkeeping& bookkeeping() {
    return bookkeeping_;
  }
  const AgentReport& report() const {
    return report_;
  }
  AgentStart& starting() {
    return starting_;
  }
  AgentEnd& ending() {
    return ending_;
  }

  c10::intrusive_ptr<JitFuture> send(
      const WorkerInfo& to, c10::intrusive_ptr<Message> message,
      const float rpcTimeoutSeconds = torch::distributed::rpc::kUnsetRpcTimeout,
      const DeviceMap& deviceMap = {}) override;

  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(worker_id_t id) const override;
  using RpcAgent::getWorkerInfo;
  std::vector<WorkerInfo> getWorkerInfos() const override;
  const std::vector<c10::Device>& getDevices() const override;
  DeviceMap getDeviceMap(const WorkerInfo& to) const override;

  void startImpl() override;
  void join(bool shutdown = false, float timeout = 0) override;
  void sync() override {}
  void shutdownImpl() override;

  std::unordered_map<std::string, std::string> getMetrics() override;
  std::unordered_map<std::string, std::string> getDebugInfo() override;

  /// Drives the backward passes in which this worker takes part.
  Engine& engine() override {
    return *parts_.engine;
  }

 private:
  void addGilWaitTime(const std::chrono::microseconds wait) override;
  void registerHandlers();

  NodeProgram program_;
  AgentParts parts_;
  Bookkeeping bookkeeping_;
  Caller caller_;
  AgentReport report_;
  AgentStart starting_;
  AgentEnd ending_;
};

} // namespace torchwire
