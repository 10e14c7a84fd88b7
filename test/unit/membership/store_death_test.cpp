// A rendezvous store that is gone during the shutdown, and workers that die meanwhile: the survivors shut down all the same.
#include <catch2/catch.hpp>

#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_shutdown.h"

using namespace torchwire;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;
constexpr uint32_t kWorkers = 4;
// More than all workers together have operations in a shutdown, without the waiting.
constexpr unsigned kOperations = 100;

using Faults = SimulatedShutdown::Faults;

/// Who survives ends in order and soon, with the same totals as the others of each round in which nobody was missing who
/// lived.
void checkEnd(const SimulatedShutdown& shutdown) {
  std::map<std::pair<std::string, std::set<WorkerId>>, Totals> agreed;
  for (const auto& worker : shutdown.workers) {
    if (worker.isDead) {
      continue;
    }
    CHECK(worker.simulated->error.empty());
    CHECK(worker.simulated->end - Clock::TimePoint() < seconds(12));
    for (const auto& [round, totals] : worker.totals) {
      CHECK(agreed.emplace(std::pair(round, totals.missing), totals).first->second == totals);
      for (const WorkerId id : totals.missing) {
        const auto& missed = shutdown.workers[static_cast<size_t>(id)];
        CHECK((missed.isDead || missed.hasLeft));
        // Who has left has done so with the last round's totals, which the others need not have got.
        CHECK((missed.isDead || missed.totals.size() <= worker.totals.size()));
      }
    }
  }
}

} // namespace

TEST_CASE("survivors shut down when the store is gone at any operation", "[store_death]") {
  for (const unsigned seed : seeds(3 * kOperations)) {
    CAPTURE(seed);
    Faults faults;
    faults.storeAnswers = seed % kOperations;
    SimulatedShutdown shutdown(seed, kWorkers, faults);
    REQUIRE(shutdown.run() == kNobody);
    checkEnd(shutdown);
  }
}

TEST_CASE("those who still reach the store come over to the others", "[store_death]") {
  for (const unsigned seed : seeds(3 * kOperations)) {
    CAPTURE(seed);
    Faults faults;
    faults.storeAnswers = seed % kOperations;
    for (WorkerId id = 0; id < static_cast<WorkerId>(kWorkers); ++id) {
      if ((seed / 7 >> id & 1) != 0) {
        faults.reachedBy.insert(id);
      }
    }
    faults.losesAnnouncements = seed % 2 == 0;
    SimulatedShutdown shutdown(seed, kWorkers, faults);
    REQUIRE(shutdown.run() == kNobody);
    checkEnd(shutdown);
  }
}

TEST_CASE("survivors shut down when who serves the store dies at any request", "[store_death]") {
  for (const unsigned seed : seeds(3 * kOperations)) {
    CAPTURE(seed);
    Faults faults;
    faults.storeAnswers = seed % 40;
    faults.answers[0] = seed / 5;
    faults.answers[1] = seed % 17;
    SimulatedShutdown shutdown(seed, kWorkers, faults);
    REQUIRE(shutdown.run() == kNobody);
    checkEnd(shutdown);
  }
}

TEST_CASE("survivors shut down when a worker dies with the store or after it", "[store_death]") {
  for (const unsigned seed : seeds(3 * kOperations)) {
    CAPTURE(seed);
    Faults faults;
    faults.storeAnswers = seed % 60;
    faults.operations[static_cast<WorkerId>(seed % kWorkers)] = seed % 23;
    faults.operations[static_cast<WorkerId>((seed + 1) % kWorkers)] = seed % 41;
    SimulatedShutdown shutdown(seed, kWorkers, faults);
    REQUIRE(shutdown.run() == kNobody);
    checkEnd(shutdown);
  }
}

TEST_CASE("the last survivor shuts down alone", "[store_death]") {
  for (const unsigned seed : seeds(kOperations)) {
    CAPTURE(seed);
    Faults faults;
    faults.storeAnswers = seed % 30;
    for (WorkerId id = 0; id < static_cast<WorkerId>(kWorkers); ++id) {
      if (id != static_cast<WorkerId>(seed % kWorkers)) {
        faults.operations[id] = (seed * 7 + static_cast<unsigned>(id) * 5) % 19;
      }
    }
    SimulatedShutdown shutdown(seed, kWorkers, faults);
    REQUIRE(shutdown.run() == kNobody);
    checkEnd(shutdown);
  }
}

TEST_CASE("a host of the store that stands still is named by all", "[store_death]") {
  for (const unsigned seed : seeds(kOperations)) {
    CAPTURE(seed);
    Faults faults;
    faults.storeAnswers = seed % 30;
    faults.standsStill = 0;
    SimulatedShutdown shutdown(seed, kWorkers, faults);
    REQUIRE(shutdown.run() == kNobody);
    for (WorkerId id = 1; id < static_cast<WorkerId>(kWorkers); ++id) {
      const auto& worker = *shutdown.workers[static_cast<size_t>(id)].simulated;
      CHECK(
          worker.error ==
          "the RPC group cannot shut down gracefully: worker 'w0' does not answer: no answer");
      CHECK(worker.end - Clock::TimePoint() < seconds(45));
    }
  }
}
