// The requests of this worker's calls, on their way to the links.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "backend/base/error.h"
#include "backend/call/call_table.h"
#include "backend/call/send_window.h"
#include "backend/link/link.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Hands requests to the links: at once, or when there is room for them. Thread-safe.
class RequestSender {
 public:
  /// What belongs to the worker, and outlives the sender.
  struct Worker {
    CallTable& calls;
    size_t maxBytesInFlight; // to one peer, see SendWindow; 0: unbounded
    /// As LinkManager::send(). On any thread, under any lock.
    std::function<void(WorkerId to, OutgoingFrame request, Link::Sent sent)> send;
    /// A request has not been sent, so that its receiver gives nothing back that was lent for it. On any thread, under any
    /// lock.
    std::function<void(WorkerId to)> unsent;
  };
  explicit RequestSender(Worker worker);
  RequestSender(const RequestSender&) = delete;
  RequestSender& operator=(const RequestSender&) = delete;

  /// Enters a call into the table, with the id in the request, and sends that. If the call fails at once, it is completed
  /// before this returns. Returns the call's id.
  uint64_t call(
      WorkerId to, CallTable::Options options, OutgoingFrame request,
      CallTable::Completion completion);

  /// A call that is in the table.
  struct Begun {
    uint64_t callId;
    Error failed; // what has failed at once; the call goes on
  };
  /// The same, but what fails at once is returned.
  Begun begin(
      WorkerId to, CallTable::Options options, OutgoingFrame request,
      CallTable::Completion completion);
  /// Sends the request of a call that is in the table. What fails at once is returned; what fails later fails the call.
  /// `counted`: as the call is tracked. On any thread, which may hold libtorch's locks or the GIL.
  Error send(WorkerId to, uint64_t callId, OutgoingFrame request, bool counted);

  /// Whether the request counts as being under way, and its call is to be tracked.
  bool isCounted(size_t requestBytes) const;
  /// Whether the call's request waits for room.
  bool isWaiting(WorkerId to, uint64_t callId) const {
    return window_ && window_->isWaiting(to, callId);
  }
  /// Nullopt: what is under way has no bound.
  std::optional<SendWindow::Usage> usage() const {
    return window_ ? std::optional(window_->usage()) : std::nullopt;
  }

 private:
  void sendNow(WorkerId to, uint64_t callId, OutgoingFrame request);
  bool fail(uint64_t callId, const Error& error);

  const Worker worker_;
  std::unique_ptr<SendWindow> window_; // null: what is under way has no bound
};

} // namespace torchwire
