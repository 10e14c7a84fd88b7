// What runs on an agent's node: functions that PyTorch's RPC serves, and what it keeps of peers that come, are lost and go.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "backend/agent/agent_parts.h"
#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/call/cancelled_calls.h"
#include "backend/call/waiter.h"
#include "backend/node/node.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Thread-safe.
class NodeProgram final : public Node::Program {
 public:
  /// Does not use the parts yet.
  explicit NodeProgram(AgentParts& parts) : parts_(parts) {}

  /// Serves callers that give up their calls. Before the first request.
  void serveCancels();

  bool serve(WorkerId caller, ReceivedFrame request) override;
  bool serveOwn(Task&& task) override;
  void dropResponse(WorkerId from, ReceivedFrame response) override;
  void requestUnsent(WorkerId to) override;
  void await(Waiter& waiter) override;
  std::optional<Refusal> admit(const WorkerRecord& worker) override;
  void peerJoined(const WorkerRecord& peer) override;
  void peerLost(WorkerId peer, const Error& error) override;
  void peerGone(const WorkerRecord& peer, const Error& error) override;
  std::string describe(WorkerId worker) const override;
  std::string nameOf(WorkerId worker) const override;
  std::chrono::milliseconds storeTimeout() const override;

 private:
  void runCallbacks(CancelledCalls::Tasks callbacks);

  AgentParts& parts_;
};

} // namespace torchwire
