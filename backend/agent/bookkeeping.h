// Requests by which the books of RRefs are kept with others, and the forks in messages.
//
// libtorch sends each such request up to six times (RpcAgent::sendWithRetries). What it does after the last failure it does on
// a thread of its own, where it throws (RRefContext::handleException), and the process ends. So none of them fails here
// (RetriedRequests). A callee that is gone keeps no books any more, so that the request counts as answered.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <vector>

#include "backend/agent/agent_parts.h"
#include "backend/node/retried_requests.h"
#include "backend/wire/roster.h"
#include "backend/wire/undo.h"
#include "rref/rref_service.h"

namespace torchwire {

/// Thread-safe.
class Bookkeeping {
 public:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;

  explicit Bookkeeping(AgentParts& parts);
  Bookkeeping(const Bookkeeping&) = delete;
  Bookkeeping& operator=(const Bookkeeping&) = delete;

  /// Whether a request is one of those that must not fail.
  static bool keeps(torch::distributed::rpc::MessageType type);
  /// Sends one, and completes the future with its answer, or as if it had been answered. Where this worker shuts down first,
  /// the future stays as it is. On any thread, under any lock.
  void send(WorkerId to, c10::intrusive_ptr<Message> message, c10::intrusive_ptr<JitFuture> future);

  /// Of each message that may carry RRefs, before it is sent. Returns what takes back the forks in it. As send().
  Undo noteForks(WorkerId to, const Message& message);
  /// Takes RRefs back that have been pickled for a message of which another part could not be. Does not wait for it.
  void withdraw(std::vector<PassedForks::Fork> forks);

 private:
  void end(WorkerId to, JitFuture& future);

  AgentParts& parts_;
  RetriedRequests requests_;
};

} // namespace torchwire
