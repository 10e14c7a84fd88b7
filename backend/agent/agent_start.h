// How an agent starts: the group, the links, the server.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "backend/agent/agent_parts.h"
#include "backend/agent/start_interruption.h"
#include "backend/link/link.h"
#include "backend/tensorpipe/tensorpipe_context.h"
#include "backend/wire/key_ring.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Used by the thread that starts, but for interrupt().
class AgentStart {
 public:
  explicit AgentStart(AgentParts& parts) : parts_(parts) {}

  /// Returns once this worker is in the group. `current`: the agent, where it is the current one; else null, as in tests
  /// without Python. Throws std::runtime_error, and Interrupted; then the others have been told.
  void run(const std::shared_ptr<torch::distributed::rpc::RpcAgent>& current);
  /// Whether run() has come so far that it tells the others why it fails.
  bool hasBegun() const {
    return parts_.membership != nullptr;
  }
  /// Ends a start that another thread is in, at its next wait. Returns once it is over, or after `patience`.
  void interrupt(std::chrono::milliseconds patience) {
    interruption_->interrupt(patience);
  }

 private:
  void openMembership();
  void joinGroup(const std::shared_ptr<torch::distributed::rpc::RpcAgent>& current);
  void startThreads();
  void beginIdsElsewhere();
  void openLinks(const std::vector<GroupKey>& keys);
  TensorPipeOptions linkSettings();
  void startServer();
  std::shared_ptr<Link> loopback();
  void enter(const std::string& address);
  void prepareToEncrypt(const Roster& roster);
  void checkDevices();

  AgentParts& parts_;
  // Shared with the store's waits, which may outlive the agent.
  const std::shared_ptr<StartInterruption> interruption_ = std::make_shared<StartInterruption>();
};

} // namespace torchwire
