#include "backend/faults/plan.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>

namespace torchwire::faults {
namespace {

// For logs and messages to be unambiguous without quoting.
bool isPlain(const std::string& name) {
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
        std::string_view(" _-.:/#").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

bool isTime(double seconds) {
  return std::isfinite(seconds) && seconds >= 0;
}

std::optional<std::string> objectionTo(const Rule& rule) {
  if (!isPlain(rule.name)) {
    return "its name may have letters, digits and \" _-.:/#\" only";
  }
  if (!isPossible(rule.action, rule.phase)) {
    return std::string("the action ") + nameOf(rule.action) + " is not possible in the phase " +
        nameOf(rule.phase);
  }
  if (!(rule.probability >= 0 && rule.probability <= 1)) {
    return "its probability is not between 0 and 1";
  }
  if (!isTime(rule.seconds.a) || !isTime(rule.seconds.b) || !isTime(rule.after)) {
    return "a time is negative, or not a number";
  }
  if (std::find(rule.nth.begin(), rule.nth.end(), 0) != rule.nth.end()) {
    return "occurrences are counted from 1, not from 0";
  }
  return std::nullopt;
}

} // namespace

const char* nameOf(Phase phase) {
  switch (phase) {
    case Phase::connect:
      return "connect";
    case Phase::request:
      return "request";
    case Phase::inFlight:
      return "in_flight";
    case Phase::response:
      return "response";
    case Phase::midTensor:
      return "mid_tensor";
  }
  return "unknown";
}

const char* nameOf(Action action) {
  switch (action) {
    case Action::drop:
      return "drop";
    case Action::fail:
      return "fail";
    case Action::delay:
      return "delay";
    case Action::duplicate:
      return "duplicate";
    case Action::reorder:
      return "reorder";
    case Action::corrupt:
      return "corrupt";
    case Action::close:
      return "close";
    case Action::refuse:
      return "refuse";
    case Action::pause:
      return "pause";
    case Action::kill:
      return "kill";
    case Action::partition:
      return "partition";
  }
  return "unknown";
}

double Duration::at(double first, double second) const {
  double seconds = 0;
  switch (shape) {
    case Shape::fixed:
      seconds = a;
      break;
    case Shape::uniform:
      seconds = a + (b - a) * first;
      break;
    case Shape::normal: // Box and Muller's; 1 - first, because a logarithm of 0 is none
      seconds =
          a + b * std::sqrt(-2 * std::log(1 - first)) * std::cos(2 * std::numbers::pi * second);
      break;
    case Shape::exponential:
      seconds = -a * std::log(1 - first);
      break;
  }
  return seconds > 0 ? seconds : 0; // not max(): so that what is not a number is 0, too
}

bool isPossible(Action action, Phase phase) {
  if (action == Action::partition) {
    return true;
  }
  if (action == Action::refuse || phase == Phase::connect) {
    return action == Action::refuse && phase == Phase::connect;
  }
  const bool wholeFrames =
      action == Action::fail || action == Action::duplicate || action == Action::reorder;
  return phase != Phase::midTensor || !wholeFrames;
}

std::optional<std::string> objectionTo(const Plan& plan) {
  for (const Rule& rule : plan.rules) {
    if (const auto objection = objectionTo(rule)) {
      return "the rule '" + rule.name + "': " + *objection;
    }
  }
  return std::nullopt;
}

} // namespace torchwire::faults
