#include "backend/serve/call_deadline.h"

#include <algorithm>
#include <utility>

namespace torchwire {
namespace {

thread_local std::optional<CallDeadline::TimePoint> deadline;

} // namespace

std::optional<CallDeadline::TimePoint> CallDeadline::get() {
  return deadline;
}

std::optional<CallDeadline::TimePoint> CallDeadline::set(std::optional<TimePoint> next) {
  return std::exchange(deadline, next);
}

std::optional<std::chrono::milliseconds> CallDeadline::left() {
  if (!deadline) { // as nearly always
    return std::nullopt;
  }
  return until(*deadline);
}

std::chrono::milliseconds CallDeadline::until(TimePoint deadline) {
  using std::chrono::milliseconds;
  return std::max(
      std::chrono::ceil<milliseconds>(deadline - TimePoint::clock::now()), milliseconds(1));
}

DeadlineScope::DeadlineScope(std::optional<CallDeadline::TimePoint> deadline)
    : before_(CallDeadline::set(deadline)) {}

DeadlineScope::~DeadlineScope() {
  CallDeadline::set(before_);
}

} // namespace torchwire
