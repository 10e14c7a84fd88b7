// The requests that workers make of each other by themselves (backend/wire/own_requests.h), at both ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/call/duplicate_filter.h"
#include "backend/call/waiter.h"
#include "backend/node/request_sender.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Makes them and serves them. None counts as a call of the program's, so that a shutdown can make them while it waits until
/// there is no such call. Thread-safe.
class OwnCalls {
 public:
  using Body = std::vector<char>;
  using Milliseconds = std::chrono::milliseconds;

  /// What belongs to the worker, and outlives its calls.
  struct Worker {
    RequestSender& requests;
    /// Waits, on a thread that may block, and may throw what a handler of a signal raises.
    std::function<void(Waiter& waiter)> await;
    /// Runs what serves a request, on a thread that may block. False when there is none any more.
    std::function<bool(Task&& task)> run;
    /// Sends a response, or drops it when the caller is gone. On any thread.
    std::function<void(WorkerId caller, OutgoingFrame response)> respond;
    /// Whether a request comes of a process in whose place another one is by now. On any thread.
    std::function<bool(WorkerId caller, uint64_t incarnation)> isFormer;
  };
  explicit OwnCalls(Worker worker) : worker_(std::move(worker)) {}
  OwnCalls(const OwnCalls&) = delete;
  OwnCalls& operator=(const OwnCalls&) = delete;

  /// What a request has come to: the answer's body, or an error.
  struct Answer {
    Error error;
    Body body;
  };
  /// Runs on whatever thread ends the call, perhaps on the one that opens it: it does not block.
  using Answered = MoveOnlyFunction<Answer>;
  void open(
      WorkerId to, uint32_t type, Body body, Milliseconds timeout,
      Answered answered = [](Answer) {});
  /// Waits for the answer on the calling thread, which may block and holds neither locks nor the GIL. Throws what
  /// exceptionOf() makes of the error.
  Body ask(WorkerId to, uint32_t type, Body body, Milliseconds timeout);

  /// Gives the answer's body, once, on any thread. If all copies go without, the caller is told that there is none.
  using Reply = std::function<void(Body body)>;
  /// Serves a request. What it throws before it replies is the answer. On a thread that may block.
  using Handler = std::function<void(WorkerId caller, const Body& request, const Reply& reply)>;
  /// Before the first request comes.
  void handle(uint32_t type, Handler handler);

  bool serves(uint32_t type) const {
    return handlers_.contains(type);
  }
  /// Serves a request that has come, of such a type, unless it has come before. On any thread. False when it cannot: the
  /// request is dropped.
  bool serve(WorkerId caller, ReceivedFrame request);
  /// The caller is gone, or its session: what it sends from now on is new.
  void callerLost(WorkerId caller) {
    seen_.forget(caller);
  }

 private:
  class Pending;
  void run(const Handler& handler, WorkerId caller, ReceivedFrame request) const;

  const Worker worker_;
  std::map<uint32_t, Handler> handlers_;
  DuplicateFilter seen_;
};

} // namespace torchwire
