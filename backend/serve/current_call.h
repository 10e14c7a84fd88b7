// Which call a thread serves.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "backend/call/cancelled_calls.h"

namespace torchwire {

/// A call that this worker serves. A value: copy it across threads freely.
class ServedCall {
 public:
  ServedCall() = default; // none
  ServedCall(
      WorkerId caller, uint64_t id, CancelledCalls::Moment arrival,
      std::shared_ptr<CancelledCalls> cancelled)
      : caller_(caller), id_(id), arrival_(arrival), cancelled_(std::move(cancelled)) {}

  WorkerId caller() const {
    return caller_;
  }
  uint64_t id() const {
    return id_;
  }
  CancelledCalls::Moment arrival() const {
    return arrival_;
  }
  const std::shared_ptr<CancelledCalls>& cancelledCalls() const {
    return cancelled_;
  }

 private:
  WorkerId caller_ = -1;
  uint64_t id_ = 0;
  CancelledCalls::Moment arrival_ = 0;
  std::shared_ptr<CancelledCalls> cancelled_;
};

/// The same, for the function that it runs: which may ask whether it is still waited for. A value.
struct WatchedCall {
  WorkerId caller = -1;
  std::shared_ptr<Cancellation> cancellation; // null: none
};

/// While one lives, the calling thread serves the call. Bound to its thread.
class ServingScope {
 public:
  /// `cancelled` outlives the scope.
  ServingScope(
      WorkerId caller, uint64_t id, CancelledCalls::Moment arrival,
      const std::shared_ptr<CancelledCalls>& cancelled);
  ~ServingScope();
  ServingScope(const ServingScope&) = delete;
  ServingScope& operator=(const ServingScope&) = delete;

  /// What the calling thread serves; none where it serves nothing.
  static ServedCall current();
  /// As long as that lasts, so that it is told of the call's end.
  static WatchedCall watch();
  /// Whether that has been given up by its caller.
  static bool isCancelled();

 private:
  const WorkerId caller_;
  const uint64_t id_;
  const CancelledCalls::Moment arrival_;
  const std::shared_ptr<CancelledCalls>& cancelled_; // not shared: nearly nobody asks
  const ServingScope* const outer_;
};

} // namespace torchwire
