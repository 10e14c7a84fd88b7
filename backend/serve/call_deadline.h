// By when the calls of a thread have to end.
#pragma once

#include <chrono>
#include <optional>

namespace torchwire {

/// Of the calling thread. What a thread sends from then on ends at the deadline at the latest.
class CallDeadline {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Nullopt: there is none.
  static std::optional<TimePoint> get();
  /// Returns what it was before.
  static std::optional<TimePoint> set(std::optional<TimePoint> next);
  /// As until(), of that deadline.
  static std::optional<std::chrono::milliseconds> left();
  /// How long it is from now to that time: 1 ms at least.
  static std::chrono::milliseconds until(TimePoint deadline);
};

/// While one lives, the calling thread has this deadline. Bound to its thread.
class DeadlineScope {
 public:
  explicit DeadlineScope(std::optional<CallDeadline::TimePoint> deadline);
  ~DeadlineScope();
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

 private:
  const std::optional<CallDeadline::TimePoint> before_;
};

} // namespace torchwire
