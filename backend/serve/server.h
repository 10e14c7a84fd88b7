// The serving side of a worker: runs requests and sends their responses.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/base/disposer.h"
#include "backend/base/task.h"
#include "backend/base/thread_pool.h"
#include "backend/call/cancelled_calls.h"
#include "backend/call/duplicate_filter.h"
#include "backend/call/metrics.h"
#include "backend/call/served_calls.h"
#include "backend/codec/codec.h"
#include "backend/serve/dispatcher.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"
#include "backend/wire/undo.h"
#include "cuda/group_devices.h"
#include "cuda/streams.h"
#include "cuda/transfer/transfers.h"

namespace torchwire {

/// Hands each request to the dispatcher on a thread that may block and answers once the dispatcher's future is
/// complete. Held by shared_ptr: a future may complete long after the agent is gone. Thread-safe.
class Server : public std::enable_shared_from_this<Server> {
 public:
  /// Sends a response frame to the caller, or drops it when the caller is gone.
  using Respond = std::function<void(WorkerId caller, OutgoingFrame)>;

  /// Runs what serves a request of that type, on a thread that may block. False when there is none any more.
  using RunRequest = std::function<bool(uint32_t messageType, Task&& task)>;

  /// `dispatcher` is used by serve() and what that runs only. `copies`: where tensors of devices are waited for.
  /// `inheritDeadline`: whether what a request's function calls ends when the caller's deadline is over.
  Server(
      const Dispatcher& dispatcher, RunRequest run, Disposer disposer, Respond respond,
      std::shared_ptr<const cuda::GroupDevices> devices, std::shared_ptr<cuda::Transfers> transfers,
      std::shared_ptr<ThreadPool> copies, std::shared_ptr<CallMetrics> calls,
      bool inheritDeadline = false);

  /// Which requests are not run: those of a process in whose place another one is by then. Nobody waits for their answers,
  /// and what they leave behind (forks, contexts) would be taken for the other's. Before the first request.
  void dropRequestsIf(std::function<bool(WorkerId caller, uint64_t incarnation)> isFormer) {
    isFormer_ = std::move(isFormer);
  }

  /// Runs the request in `frame` soon, unless it is one of own_messages.h that has come before.
  /// False when it cannot run: the request is dropped.
  bool serve(WorkerId caller, ReceivedFrame request);

  /// The caller is gone, or its session: what it sends from now on is new. Returns what is to be run, as cancel() does.
  [[nodiscard]] CancelledCalls::Tasks callerLost(WorkerId caller) {
    seen_.forget(caller);
    return cancelled_->forget(caller);
  }

  /// The caller has given the call up. Returns what functions want to have run then: on threads that may block.
  [[nodiscard]] CancelledCalls::Tasks cancel(WorkerId caller, uint64_t callId) {
    ++metrics_.cancelled;
    return cancelled_->add(caller, callId);
  }

  /// The agent shuts down. Returns what functions wanted to have run, to be dropped on a thread that may block.
  [[nodiscard]] CancelledCalls::Tasks shutDown() {
    return cancelled_->endAll();
  }

  ServerMetrics& metrics() {
    return metrics_;
  }
  /// Requests that have come and are not answered.
  const ServedCalls& served() const {
    return served_;
  }

 private:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;

  using TimePoint = std::chrono::steady_clock::time_point;
  struct Arrived;
  void run(Arrived arrived);
  c10::intrusive_ptr<JitFuture> process(
      WorkerId caller, DecodedMessage request, std::optional<cuda::RequestStreams>& streams);
  class Pending;
  /// The request that a response is for.
  struct Answered {
    ServedCalls::Request request;
    std::chrono::nanoseconds served; // how long it was here
    Undo undo = {}; // of what has been done for the response
  };
  void answer(const Answered& answered, JitFuture& result);
  void answer(Answered answered, c10::intrusive_ptr<Message> response);
  void begin(const Answered& answered, c10::intrusive_ptr<Message> response);
  void answerWhenCopied(
      const Answered& answered, c10::intrusive_ptr<Message> response,
      cuda::OutgoingTensors tensors);
  void send(
      const Answered& answered, c10::intrusive_ptr<Message> response,
      cuda::OutgoingTensors tensors);
  void send(
      const Answered& answered, c10::intrusive_ptr<Message> response,
      const TensorTargets& targets = {});
  void sendError(Answered answered, const std::string& text);
  void respond(const Answered& answered, OutgoingFrame frame);

  const Dispatcher& dispatcher_;
  const RunRequest runRequest_;
  std::function<bool(WorkerId caller, uint64_t incarnation)> isFormer_; // null: none
  const Disposer disposer_; // of what a response's frame keeps
  const Respond respond_;
  const std::shared_ptr<const cuda::GroupDevices> devices_;
  const std::shared_ptr<cuda::Transfers> transfers_;
  const std::shared_ptr<ThreadPool> copies_;
  const bool inheritDeadline_;
  DuplicateFilter seen_;
  const std::shared_ptr<CancelledCalls> cancelled_ =
      std::make_shared<CancelledCalls>(); // what runs may ask after the end
  ServerMetrics metrics_;
  const std::shared_ptr<CallMetrics> calls_;
  ServedCalls served_{calls_->trace};
};

} // namespace torchwire
