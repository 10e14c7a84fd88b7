// What the start of a group leaves in the store, below the group's prefix, and the times in it.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>

#include "backend/base/process_identity.h"

namespace torchwire {

inline const std::string kStartupDecision =
    "startup_decision"; // "ok", or why the static group cannot start
inline const std::string kAccepted = "ok";
inline const std::string kArrived =
    "arrived/"; // and a rank: systemTime(), and a Roster of its worker alone, which has begun to start
inline const std::string kFailedAt =
    "startup_failed_at"; // where a worker has failed or ended: systemTime()

// What was being done when the store failed.
inline const std::string kJoining = "join the RPC group";

/// In milliseconds, by a clock that is about the same on all hosts.
inline int64_t systemTime() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// The same of a process's start; 0 where that is not known.
inline int64_t startOf(const ProcessIdentity& process) {
  timespec sinceBoot{};
  if (!process.isKnown() || clock_gettime(CLOCK_BOOTTIME, &sinceBoot) != 0) {
    return 0;
  }
  const int64_t uptime = int64_t{sinceBoot.tv_sec} * 1000 + sinceBoot.tv_nsec / 1'000'000;
  return systemTime() - uptime +
      static_cast<int64_t>(process.startTime) * 1000 / sysconf(_SC_CLK_TCK);
}

} // namespace torchwire
