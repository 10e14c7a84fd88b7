#include "test/simulation/shrink.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>

namespace torchwire::simulation {
namespace {

// Of the trace, which ends where the invariant is found violated: what comes in between is mostly the calls at the end, by
// which all that live find each other.
constexpr size_t kFirstLines = 100;
constexpr size_t kLastLines = 20;

std::string listOf(const Chosen& chosen) {
  std::string list;
  for (const size_t step : chosen) {
    list += (list.empty() ? "" : ",") + std::to_string(step);
  }
  return list;
}

/// Delta debugging: leaves parts out, ever smaller ones, for as long as the rest still fails.
class Shrinking {
 public:
  Shrinking(const Plan& plan, Bug bug, Invariant invariant, int runs)
      : plan_(plan), bug_(bug), invariant_(invariant), left_(runs) {}

  Chosen shrink(Chosen chosen) {
    size_t part = std::max<size_t>(chosen.size() / 2, 1);
    while (left_ > 0) {
      if (leaveOut(chosen, part)) {
        continue;
      }
      if (part == 1) {
        break;
      }
      part = (part + 1) / 2;
    }
    return chosen;
  }

 private:
  /// Goes through all parts of this size, the last first. True if one could be left out.
  bool leaveOut(Chosen& chosen, size_t part) {
    bool any = false;
    for (size_t end = chosen.size(); end > 0 && left_ > 0;) {
      const size_t begin = end > part ? end - part : 0;
      Chosen rest(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(begin));
      rest.insert(rest.end(), chosen.begin() + static_cast<ptrdiff_t>(end), chosen.end());
      if (fails(rest)) {
        chosen = std::move(rest);
        any = true;
      }
      end = begin;
    }
    return any;
  }

  bool fails(const Chosen& chosen) {
    --left_;
    const auto outcome = run(only(plan_, chosen), bug_);
    return outcome.violation && outcome.violation->invariant == invariant_;
  }

  const Plan& plan_;
  const Bug bug_;
  const Invariant invariant_;
  int left_;
};

} // namespace

Chosen chosenSteps(const Plan& plan) {
  Chosen chosen;
  if (const char* steps = std::getenv("TORCHWIRE_TEST_STEPS")) {
    std::istringstream in(steps);
    for (std::string number; std::getline(in, number, ',');) {
      chosen.push_back(std::stoul(number));
    }
  } else {
    chosen.resize(plan.steps.size());
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  return chosen;
}

Plan only(const Plan& plan, const Chosen& chosen) {
  Plan part;
  part.settings = plan.settings;
  for (const size_t step : chosen) {
    part.steps.push_back(plan.steps.at(step));
  }
  return part;
}

Chosen shrink(const Plan& plan, Bug bug, const Chosen& from, Invariant invariant, int runs) {
  return Shrinking(plan, bug, invariant, runs).shrink(from);
}

std::string report(const Plan& plan, Bug bug, const Chosen& chosen) {
  std::vector<std::string> lines;
  const Plan part = only(plan, chosen);
  const auto outcome = run(part, bug, [&](const std::string& line) { lines.push_back(line); });
  std::string text = "\nseed " + std::to_string(plan.settings.seed) + " (" +
      plan.settings.describe() + "), " + std::to_string(chosen.size()) + " of " +
      std::to_string(plan.steps.size()) + " steps:\n";
  for (const Step& step : part.steps) {
    text += "  " + step.describe() + "\n";
  }
  text += "what happened:\n";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i < kFirstLines || i + kLastLines >= lines.size()) {
      text += "  " + lines[i] + "\n";
    } else if (i == kFirstLines) {
      text += "  ...\n";
    }
  }
  if (outcome.violation) {
    text += std::string("violated: ") + nameOf(outcome.violation->invariant) + "\n  " +
        outcome.violation->text + "\n";
  }
  return text + "again: TORCHWIRE_TEST_SEED=" + std::to_string(plan.settings.seed) +
      " TORCHWIRE_TEST_STEPS=" + listOf(chosen) + " meson test -C BUILD --verbose simulation\n";
}

} // namespace torchwire::simulation
