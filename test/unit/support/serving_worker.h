// A worker that only serves.
#pragma once

#include <memory>

#include "backend/base/thread_pool.h"
#include "backend/serve/dispatcher.h"
#include "backend/serve/server.h"
#include "test/unit/support/response_log.h"

namespace torchwire {

/// A server with its dispatcher and pools, wired as Agent wires them but for the links: frames come by deliver(), and
/// responses go to a log, which may outlive it as links do. Thread-safe.
class ServingWorker {
 public:
  static constexpr const char* kRequestThread = "test_requests";
  static constexpr const char* kControlThread = "test_control";

  /// `threads`: of each pool. `responses`: where they go, if not to a log of its own.
  explicit ServingWorker(
      size_t threads = 2, std::shared_ptr<ResponseLog> responses = std::make_shared<ResponseLog>());
  /// As with the agent, the threads end first.
  ~ServingWorker();
  ServingWorker(const ServingWorker&) = delete;
  ServingWorker& operator=(const ServingWorker&) = delete;

  Dispatcher& dispatcher() {
    return dispatcher_;
  }
  Server& server() {
    return *server_;
  }
  ThreadPool& requests() {
    return *requests_;
  }
  ThreadPool& control() {
    return *control_;
  }
  ResponseLog& responses() {
    return *responses_;
  }

  /// A request comes from the loop. What the server says to it.
  bool deliver(WorkerId caller, ReceivedFrame request);
  bool deliver(
      WorkerId caller, uint64_t callId,
      c10::intrusive_ptr<torch::distributed::rpc::Message> request);
  /// The same, and waits for the response.
  c10::intrusive_ptr<torch::distributed::rpc::Message> call(
      WorkerId caller, uint64_t callId,
      c10::intrusive_ptr<torch::distributed::rpc::Message> request);

 private:
  const std::shared_ptr<ResponseLog> responses_;
  const std::shared_ptr<ThreadPool> requests_;
  const std::shared_ptr<ThreadPool> control_; // a frame that is still on its way may keep it
  Dispatcher dispatcher_;
  const std::shared_ptr<cuda::GroupDevices> devices_;
  const std::shared_ptr<Server> server_;
};

/// The frame of a request, as it arrives.
ReceivedFrame frameOf(
    uint64_t callId, c10::intrusive_ptr<torch::distributed::rpc::Message> request);

} // namespace torchwire
