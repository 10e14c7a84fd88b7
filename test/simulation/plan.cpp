#include "test/simulation/plan.h"

#include <algorithm>
#include <array>

#include "test/simulation/random.h"

namespace torchwire::simulation {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

struct Weight {
  StepKind kind;
  uint64_t weight;
};

constexpr std::array kOperations = {
    Weight{StepKind::call, 30},       Weight{StepKind::quickCall, 10},
    Weight{StepKind::endlessCall, 3}, Weight{StepKind::nestedCall, 10},
    Weight{StepKind::largeCall, 5},   Weight{StepKind::create, 10},
    Weight{StepKind::pass, 12},       Weight{StepKind::drop, 10},
    Weight{StepKind::openContext, 2}, Weight{StepKind::contextCall, 8},
    Weight{StepKind::closeContext, 2}};
constexpr std::array kFaults = {
    Weight{StepKind::breakLink, 40}, Weight{StepKind::cut, 14},      Weight{StepKind::isolate, 2},
    Weight{StepKind::slow, 8},       Weight{StepKind::damage, 8},    Weight{StepKind::refuse, 8},
    Weight{StepKind::pause, 6},      Weight{StepKind::kill, 3},      Weight{StepKind::start, 7},
    Weight{StepKind::leave, 1},      Weight{StepKind::storeFails, 3}};

template <typename Weights>
StepKind choose(Random& random, const Weights& weights) {
  uint64_t sum = 0;
  for (const Weight& one : weights) {
    sum += one.weight;
  }
  uint64_t drawn = random.below(sum);
  for (const Weight& one : weights) {
    if (drawn < one.weight) {
      return one.kind;
    }
    drawn -= one.weight;
  }
  return weights.front().kind;
}

milliseconds timeOf(StepKind kind, const Settings& settings, Random& random) {
  switch (kind) {
    case StepKind::quickCall:
      return milliseconds(random.between(1, 2000));
    case StepKind::endlessCall:
      return milliseconds(0);
    case StepKind::cut:
    case StepKind::isolate:
    case StepKind::pause: { // mostly what a session outlives
      const auto session = std::max<int64_t>(settings.sessionTimeout.count(), 2000);
      return milliseconds(
          random.oneIn(8) ? random.between(session, 2 * session) : random.between(1, session / 2));
    }
    case StepKind::slow:
      return milliseconds(random.between(100, 20000));
    default:
      return milliseconds(60000);
  }
}

Step draw(StepKind kind, const Settings& settings, microseconds at, Random& random) {
  Step step;
  step.kind = kind;
  step.at = at;
  const auto slots = static_cast<uint64_t>(settings.slots);
  step.a = static_cast<Slot>(random.below(slots));
  step.b = static_cast<Slot>((static_cast<uint64_t>(step.a) + 1 + random.below(slots - 1)) % slots);
  step.c = static_cast<Slot>(random.below(slots));
  const bool toItself = kind <= StepKind::nestedCall && random.oneIn(12);
  if (toItself) {
    step.b = step.a;
  }
  step.time = timeOf(kind, settings, random);
  step.choice = random.next() >> 8U;
  return step;
}

/// Evenly, but for bursts.
std::vector<microseconds> times(int count, microseconds length, Random& random) {
  std::vector<microseconds> all;
  microseconds burst{0};
  for (int i = 0; i < count; ++i) {
    if (i % 20 == 0) {
      burst = microseconds(random.below(static_cast<uint64_t>(length.count())));
    }
    const bool inBurst = i % 20 < 8;
    all.push_back(
        inBurst ? burst + microseconds(random.below(3000))
                : microseconds(random.below(static_cast<uint64_t>(length.count()))));
  }
  return all;
}

/// One worker is replaced again and again while it makes calls.
void addChurn(Plan& plan, Random& random) {
  constexpr int kRounds = 25;
  constexpr int kCalls = 6;
  constexpr milliseconds kRound{400};
  for (int round = 0; round < kRounds; ++round) {
    const microseconds begin = kRound * round;
    Step step = draw(StepKind::start, plan.settings, begin, random);
    step.a = 1;
    plan.steps.push_back(step);
    for (int i = 0; i < kCalls; ++i) {
      step = draw(
          StepKind::call, plan.settings, begin + milliseconds(random.between(50, 350)), random);
      step.a = 1;
      step.b = 0;
      plan.steps.push_back(step);
    }
    step.kind = StepKind::kill;
    step.at = begin + milliseconds(380);
    plan.steps.push_back(step);
  }
}

} // namespace

const char* nameOf(StepKind kind) {
  switch (kind) {
#define TORCHWIRE_STEP(name) \
  case StepKind::name:       \
    return #name;
    TORCHWIRE_SIMULATION_STEPS(TORCHWIRE_STEP)
#undef TORCHWIRE_STEP
  }
  return "?";
}

std::string Step::describe() const {
  std::string text = std::to_string(at.count() / 1000) + "." +
      std::to_string(1000 + at.count() % 1000).substr(1) + " ms: " + nameOf(kind) + " a=w" +
      std::to_string(a) + " b=w" + std::to_string(b) + " c=w" + std::to_string(c);
  if (time.count() > 0) {
    text += " time=" + std::to_string(time.count()) + " ms";
  }
  return text + " choice=" + std::to_string(choice % 1000);
}

std::string Settings::describe() const {
  return std::to_string(slots) + " workers, session_timeout " +
      std::to_string(sessionTimeout.count()) + " ms, " + std::to_string(sessionBytes) +
      " bytes kept" + (sharesHosts ? ", on one host" : ", on hosts of their own") +
      (keepsPorts ? ", with fixed ports" : "");
}

Plan makePlan(uint64_t seed, const Amount& amount) {
  Random random(seed, 7);
  Plan plan;
  Settings& settings = plan.settings;
  settings.seed = seed;
  settings.slots = static_cast<Slot>(random.between(2, 6));
  if (random.oneIn(8)) {
    settings.sessionTimeout = milliseconds(0);
  } else if (random.oneIn(4)) {
    settings.sessionTimeout = milliseconds(random.between(3000, 10000));
  }
  settings.sessionBytes = random.oneIn(4) ? 600 : size_t{64} << 20;
  settings.sharesHosts = random.oneIn(3);
  settings.keepsPorts = random.oneIn(3);
  // So many workers that faults of a pair are some 20 s apart.
  const microseconds length =
      milliseconds(2000) + milliseconds(1000) * amount.faults * (random.oneIn(4) ? 1 : 4);
  for (const microseconds at : times(amount.operations, length, random)) {
    plan.steps.push_back(draw(choose(random, kOperations), settings, at, random));
  }
  for (const microseconds at : times(amount.faults, length, random)) {
    plan.steps.push_back(draw(choose(random, kFaults), settings, at, random));
    if (plan.steps.back().kind == StepKind::kill && random.oneIn(2)) { // another comes soon
      Step start = plan.steps.back();
      start.kind = StepKind::start;
      start.at += microseconds(random.below(800000));
      plan.steps.push_back(start);
    }
  }
  if (random.oneIn(8)) {
    addChurn(plan, random);
  }
  std::stable_sort(plan.steps.begin(), plan.steps.end(), [](const Step& a, const Step& b) {
    return a.at < b.at;
  });
  return plan;
}

} // namespace torchwire::simulation
