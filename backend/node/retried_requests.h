// Requests that are sent again until they are answered.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "backend/base/task.h"
#include "backend/base/timer.h"
#include "backend/call/call_table.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// For what must not fail: as long as its callee is in the group, a request is sent again, at ever longer intervals. A callee
/// that is dead or has left has forgotten what the request is about, so that it is over; likewise where another process has
/// come in the callee's place between two attempts. Thread-safe.
class RetriedRequests {
 public:
  enum class Ended {
    answered,
    calleeGone, // or it has answered with an error again and again
    closed, // this worker shuts down
  };
  /// On the thread on which the last attempt was completed, or a control thread.
  using Completion = MoveOnlyFunction<Ended>;
  /// Sends the request once, and has `completed` called once, on a thread that may block. On the thread of send(), then on a
  /// control thread.
  using Attempt = std::function<void(MoveOnlyFunction<Outcome> completed)>;

  /// What belongs to the worker, and outlives its requests.
  struct Worker {
    Timer& timer;
    std::function<bool(Task&& task)> control; // runs a task on a thread that may block
    std::function<uint64_t(WorkerId)> incarnationOf; // as of LinkManager
    std::function<bool()> isClosed;
  };
  explicit RetriedRequests(Worker worker) : worker_(std::move(worker)) {}
  RetriedRequests(const RetriedRequests&) = delete;
  RetriedRequests& operator=(const RetriedRequests&) = delete;

  void send(WorkerId to, Attempt attempt, Completion completion);

 private:
  struct Request;
  void attempt(Request request);
  void onEnd(Request request, Outcome outcome);
  void sendLater(Request request);

  const Worker worker_;
};

} // namespace torchwire
