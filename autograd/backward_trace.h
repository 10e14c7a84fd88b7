// Backward passes in traces.
#pragma once

#include <memory>
#include <utility>

#include "autograd/pass/pass_messages.h"
#include "autograd/pass/pass_table.h"
#include "backend/call/metrics.h"

namespace torchwire {

/// Notes, while a trace is on, how long passes and this worker's parts in them take, and which requests brought their
/// gradients. What it returns may be called after it is gone. Thread-safe.
class BackwardTrace {
 public:
  using Clock = TraceLog::Clock;

  explicit BackwardTrace(std::shared_ptr<CallMetrics> metrics) : metrics_(std::move(metrics)) {}

  /// The time now; none where no trace is on.
  Clock::time_point now() const {
    return metrics_->trace.isOn() ? Clock::now() : Clock::time_point();
  }
  /// A pass that is to start here has begun at `begun`, see now(). Null where no trace was on.
  PassTable::Ended started(const PassId& pass, Clock::time_point begun) const;
  /// This worker's part in the pass begins.
  PassTable::Ended joined(const PassId& pass) const;
  /// The calling thread serves a request with gradients of the pass.
  void received(const PassId& pass) const;

 private:
  PassTable::Ended noting(
      TraceLog::Note::Kind kind, const PassId& pass, Clock::time_point begun) const;

  const std::shared_ptr<CallMetrics> metrics_;
};

} // namespace torchwire
