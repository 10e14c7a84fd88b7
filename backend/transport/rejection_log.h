// Log lines about unknown peers, of whom there may be very many.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace torchwire {

/// Writes a warning for each refusal, but at most a few in any ten seconds: further ones are counted and
/// told in one line afterwards. Not thread-safe.
class RejectionLog {
 public:
  using Clock = std::chrono::steady_clock;

  /// `where` names the listening endpoint.
  explicit RejectionLog(std::string where) : where_(std::move(where)) {}

  /// How many any of this process has noted.
  static uint64_t countInProcess();

  void note(
      const std::string& from, const std::string& reason, Clock::time_point now = Clock::now());

 private:
  const std::string where_;
  Clock::time_point windowStart_{};
  int told_ = 0; // in this window
  uint64_t untold_ = 0;
};

} // namespace torchwire
