// Which call a thread serves.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "backend/base/fork.h"
#include "backend/call/cancelled_calls.h"
#include "backend/call/served_calls.h"
#include "backend/call/trace_log.h"

namespace torchwire {

/// A call that this worker serves. A value: copy it across threads freely, as long as the worker's CallMetrics live.
class ServedCall {
 public:
  ServedCall() = default; // none
  ServedCall(
      const ServedCalls::Request& request, CancelledCalls::Moment arrival,
      std::shared_ptr<CancelledCalls> cancelled)
      : request_(request), arrival_(arrival), cancelled_(std::move(cancelled)) {}

  const ServedCalls::Request& request() const {
    return request_;
  }
  CancelledCalls::Moment arrival() const {
    return arrival_;
  }
  const std::shared_ptr<CancelledCalls>& cancelledCalls() const {
    return cancelled_;
  }
  /// For a trace: a note about this call, to be completed.
  TraceLog::Note note(TraceLog::Note::Kind kind) const;

 private:
  ServedCalls::Request request_;
  CancelledCalls::Moment arrival_ = 0;
  std::shared_ptr<CancelledCalls> cancelled_;
};

/// The same, for the function that it runs: which may ask whether it is still waited for. A value.
struct WatchedCall {
  WorkerId caller = -1;
  std::shared_ptr<Cancellation> cancellation; // null: none
};

/// While one lives, the calling thread serves the call; but not in a process that the function forks. Bound to its thread.
class ServingScope {
 public:
  /// `cancelled` outlives the scope. `rref`: see ServedCalls::Ticket; null: nobody asks.
  ServingScope(
      const ServedCalls::Request& request, CancelledCalls::Moment arrival,
      const std::shared_ptr<CancelledCalls>& cancelled, std::atomic<uint64_t>* rref = nullptr);
  ~ServingScope();
  ServingScope(const ServingScope&) = delete;
  ServingScope& operator=(const ServingScope&) = delete;

  /// What the calling thread serves; none where it serves nothing.
  static ServedCall current();
  /// As long as that lasts, so that it is told of the call's end.
  static WatchedCall watch();
  /// Whether that has been given up by its caller.
  static bool isCancelled();
  /// It creates or fetches the RRef whose id has that hash.
  static void noteRRef(uint64_t hash);
  /// Its function has raised, or cannot run. Counted once; nothing where the calling thread serves nothing.
  static void countError();
  /// The same of a request that the calling thread may serve, and may have counted.
  static void countError(const ServedCalls::Request& request);

 private:
  /// The calling thread's innermost; null: none.
  static ServingScope* here();

  const uint64_t generation_ = forkGeneration();
  const ServedCalls::Request request_;
  const CancelledCalls::Moment arrival_;
  const std::shared_ptr<CancelledCalls>& cancelled_; // not shared: nearly nobody asks
  std::atomic<uint64_t>* const rref_;
  bool isCounted_ = false; // as an error
  ServingScope* const outer_;
};

} // namespace torchwire
