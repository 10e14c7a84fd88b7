// When which workers are cut off from each other.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "backend/faults/plan.h"

namespace torchwire::faults {

/// A time in which no frame passes between this worker and a peer.
struct Cut {
  std::string rule;
  std::chrono::steady_clock::time_point until;
};

/// The partitions of a plan, as one worker has part in them. A value; may be read by many threads.
class Partitions {
 public:
  using Clock = std::chrono::steady_clock;

  Partitions() = default;
  /// `start`: when the plan took effect.
  Partitions(std::string self, const Plan& plan, Clock::time_point start);

  /// Whether frames between this worker and the peer are held at that time, and until when. Both sides
  /// find the same. A worker is cut off from itself only where both sets name it: a set of all workers is not meant
  /// so, since no network is between a worker and itself.
  std::optional<Cut> between(const std::string& peer, Clock::time_point now) const;

 private:
  struct Window {
    Rule rule;
    Clock::time_point from, until;
  };

  const Window* covering(const std::string& peer, Clock::time_point time) const;
  bool separates(const Rule& rule, const std::string& peer) const;

  std::string self_;
  std::vector<Window> windows_;
};

} // namespace torchwire::faults
