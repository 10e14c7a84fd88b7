// The agent that libtorch asks for: it has none of torchwire's behind it.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Makes libtorch's singletons believe in a group, of which this process is one worker: what RRefContext and the
/// autograd container send is kept, and answered by the test. Thread-safe.
class StandInAgent final : public torch::distributed::rpc::RpcAgent {
 public:
  using Message = torch::distributed::rpc::Message;
  using MessageType = torch::distributed::rpc::MessageType;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;
  using WorkerNumber = torch::distributed::rpc::worker_id_t;

  static constexpr WorkerId kSelf = 3;

  /// The only one: libtorch keeps the first that it gets.
  static StandInAgent& instance();

  struct Sent {
    WorkerId to;
    MessageType type;
    c10::intrusive_ptr<JitFuture> response;
  };
  /// What has been sent since it was last asked.
  std::vector<Sent> takeSent() EXCLUDES(mutex_);

  StandInAgent();

  c10::intrusive_ptr<JitFuture> send(
      const WorkerInfo& to, c10::intrusive_ptr<Message> message, float rpcTimeoutSeconds,
      const torch::distributed::rpc::DeviceMap& deviceMap) override EXCLUDES(mutex_);
  const std::vector<c10::Device>& getDevices() const override;
  const WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const WorkerInfo& getWorkerInfo(WorkerNumber id) const override;
  std::vector<WorkerInfo> getWorkerInfos() const override;
  void join(bool, float) override {}
  void sync() override {}
  void startImpl() override {}
  void shutdownImpl() override {}
  std::unordered_map<std::string, std::string> getMetrics() override {
    return {};
  }

 private:
  void addGilWaitTime(std::chrono::microseconds) override {}

  const std::vector<WorkerInfo> workers_;
  Mutex mutex_{LockRank::test};
  std::vector<Sent> sent_ GUARDED_BY(mutex_);
};

} // namespace torchwire
