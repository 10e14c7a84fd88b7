// The agent of the process.
#pragma once

#include <memory>

#include "backend/agent/agent.h"

namespace torchwire {

/// Null where the current agent is none, or another backend's. Thread-safe.
inline std::shared_ptr<Agent> currentAgent() {
  using torch::distributed::rpc::RpcAgent;
  return RpcAgent::isCurrentRpcAgentSet()
      ? std::dynamic_pointer_cast<Agent>(RpcAgent::getCurrentRpcAgent())
      : nullptr;
}

} // namespace torchwire
