// Where the callbacks of TensorPipe run.
#pragma once

#include <atomic>
#include <memory>

#include "backend/base/task.h"
#include "backend/transport/loop.h"

namespace torchwire {

/// TensorPipe owns no thread: whoever calls into it runs, before it returns, all that is due in its context, the
/// callbacks of other pipes included. So a callback may come on a thread that is in the midst of a send, under any
/// lock and with the GIL held. Such a one is handed to the transports' loop; one that comes on a loop runs at once. What
/// it throws is logged.
/// Held by shared_ptr. Thread-safe.
class CallbackRelay : public std::enable_shared_from_this<CallbackRelay> {
 public:
  explicit CallbackRelay(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}
  CallbackRelay(const CallbackRelay&) = delete;
  CallbackRelay& operator=(const CallbackRelay&) = delete;

  /// Runs what a callback has to do, as a delivery: now, or soon on the loop. What `delivery` holds goes where it runs.
  void run(Task delivery);

  /// Returns once nothing that was handed to the loop runs or waits there. Not on the loop.
  void drain();

 private:
  const std::shared_ptr<Loop> loop_;
  std::atomic<int> waiting_{0}; // handed to the loop, and not over
};

} // namespace torchwire
