// Runs over many seeds. TORCHWIRE_TEST_SEED repeats the run of one, TORCHWIRE_TEST_SEEDS=1000 takes so many;
// TORCHWIRE_TEST_STEPS takes some of a run's steps only, as a report says.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "test/simulation/shrink.h"
#include "test/simulation/simulation.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;
using namespace torchwire::simulation;

namespace {

/// What is wrong with a seed's run, in words; nothing if all is well.
std::string complaint(unsigned seed, Tally& sum) {
  const Plan plan = makePlan(seed, Amount());
  const Chosen chosen = chosenSteps(plan);
  const auto outcome = run(only(plan, chosen));
  sum += outcome.tally;
  if (!outcome.violation) {
    return "";
  }
  const bool isShort = chosen.size() < plan.steps.size();
  return report(
      plan, Bug::none,
      isShort ? chosen : shrink(plan, Bug::none, chosen, outcome.violation->invariant));
}

} // namespace

TEST_CASE("no invariant is violated, whatever fails and in whatever order", "[simulation]") {
  Tally sum;
  const auto begun = std::chrono::steady_clock::now();
  for (const unsigned seed : seeds(40)) {
    const std::string wrong = complaint(seed, sum);
    CHECK(wrong == "");
    if (!wrong.empty()) {
      break; // each takes its time to shrink
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%s; %.1f s\n", sum.describe().c_str(), took.count());
}

// 769: a welcome was lost. Who had sent it found nobody to resume the session with, and declared the dialer dead.
// 2148: a worker that had been declared dead, of which nobody knew any more, dialed for ever one that had been replaced.
TEST_CASE("runs that have shown a defect of the product show none any more", "[simulation]") {
  for (const unsigned seed : {769U, 2148U}) {
    const auto violation = run(makePlan(seed, {.operations = 1200})).violation;
    CHECK((violation ? violation->text : "") == "");
  }
}

TEST_CASE("each invariant is shown to catch a planted bug", "[simulation_bugs]") {
  struct Planted {
    Bug bug;
    Invariant invariant;
    const char* sentence;
  };
  constexpr unsigned kSeeds = 200;
  for (const Planted& planted : {
#define TORCHWIRE_BUG(name, invariant, sentence) Planted{Bug::name, Invariant::invariant, sentence},
           TORCHWIRE_SIMULATION_BUGS(TORCHWIRE_BUG)
#undef TORCHWIRE_BUG
       }) {
    CAPTURE(planted.sentence);
    unsigned caught = 0;
    std::string otherwise;
    for (unsigned seed = 1; seed <= kSeeds && caught == 0; ++seed) {
      const auto violation = run(makePlan(seed, Amount()), planted.bug).violation;
      if (violation && violation->invariant == planted.invariant) {
        caught = seed;
      } else if (violation) {
        otherwise = violation->text;
      }
    }
    CAPTURE(otherwise);
    CHECK(caught > 0);
    std::printf("seed %u: %s\n", caught, planted.sentence);
  }
}

TEST_CASE("a run is the same each time, and shrinks to a few steps", "[simulation_shrink]") {
  const Plan plan = makePlan(3, Amount());
  const auto once = run(plan);
  CHECK(run(plan).tally.describe() == once.tally.describe());
  const auto violation = run(plan, Bug::servesTwice).violation;
  REQUIRE(violation);
  CHECK(run(plan, Bug::servesTwice).violation->text == violation->text);
  const Chosen chosen =
      shrink(plan, Bug::servesTwice, chosenSteps(plan), violation->invariant, 300);
  CHECK(chosen.size() < 100);
  CHECK(run(only(plan, chosen), Bug::servesTwice).violation);
  CHECK(report(plan, Bug::servesTwice, chosen).find("again: ") != std::string::npos);
}
