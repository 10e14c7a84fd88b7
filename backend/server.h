// The serving side of a worker: runs requests and sends their responses.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/request_callback.h>

#include <functional>
#include <memory>

#include "backend/frame.h"
#include "backend/metrics.h"
#include "backend/roster.h"
#include "backend/worker_pool.h"

namespace torchwire {

/// Hands each request to the request callback on a pool thread and answers once the callback's future
/// is complete. Held by shared_ptr: a future may complete long after the agent is gone. Thread-safe.
class Server : public std::enable_shared_from_this<Server> {
 public:
  /// Sends a response frame to the caller, or drops it when the caller is gone.
  using Respond = std::function<void(WorkerId caller, OutgoingFrame)>;

  /// `callback` and `pool` are used by serve() and by tasks of the pool only.
  Server(
      const torch::distributed::rpc::RequestCallback& callback, WorkerPool& pool, Respond respond);

  /// Runs the request in `frame` soon.
  /// False when the pool has ended: the request is dropped.
  bool serve(WorkerId caller, IncomingFrame frame);

  ServerMetrics& metrics() {
    return metrics_;
  }

 private:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;

  void run(WorkerId caller, IncomingFrame frame);
  c10::intrusive_ptr<JitFuture> process(IncomingFrame frame);
  void answer(WorkerId caller, uint64_t callId, JitFuture& result);

  const torch::distributed::rpc::RequestCallback& callback_;
  WorkerPool& pool_;
  const Respond respond_;
  ServerMetrics metrics_;
};

} // namespace torchwire
