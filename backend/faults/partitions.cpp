#include "backend/faults/partitions.h"

#include <algorithm>
#include <utility>

#include "backend/faults/fault_schedule.h"

namespace torchwire::faults {
namespace {

bool names(const std::vector<std::string>& set, const std::string& name) {
  return std::find(set.begin(), set.end(), name) != set.end();
}

Partitions::Clock::duration fromSeconds(double seconds) {
  constexpr double kMax = 1e8; // three years, which a time point can still be moved by
  return std::chrono::duration_cast<Partitions::Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kMax)));
}

} // namespace

Partitions::Partitions(std::string self, const Plan& plan, Clock::time_point start)
    : self_(std::move(self)) {
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const Rule& rule = plan.rules[i];
    if (rule.action != Action::partition) {
      continue;
    }
    // All workers draw the same time: it is the network's.
    const double seconds = rule.seconds.at(commonDraw(plan, i, 0), commonDraw(plan, i, 1));
    const auto from = start + fromSeconds(rule.after);
    windows_.push_back({rule, from, from + fromSeconds(seconds)});
  }
}

std::optional<Cut> Partitions::between(const std::string& peer, Clock::time_point now) const {
  const Window* window = covering(peer, now);
  if (window == nullptr) {
    return std::nullopt;
  }
  Cut cut{window->rule.name, window->until};
  // Another may begin before this one ends.
  while ((window = covering(peer, cut.until)) != nullptr) {
    cut.until = window->until;
  }
  return cut;
}

const Partitions::Window* Partitions::covering(
    const std::string& peer, Clock::time_point time) const {
  for (const Window& window : windows_) {
    if (window.from <= time && time < window.until && separates(window.rule, peer)) {
      return &window;
    }
  }
  return nullptr;
}

bool Partitions::separates(const Rule& rule, const std::string& peer) const {
  if (peer == self_) {
    return names(rule.from, self_) && names(rule.to, self_);
  }
  return (matches(rule.from, self_) && matches(rule.to, peer)) ||
      (matches(rule.from, peer) && matches(rule.to, self_));
}

} // namespace torchwire::faults
