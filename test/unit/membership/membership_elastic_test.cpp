// Static groups whose workers are replaced, and which grow, in any order of the workers' store operations.
#include <catch2/catch.hpp>
#include <set>

#include "backend/membership/membership.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Names = std::vector<std::string>;

namespace {

const Names kNobody;

SimulatedWorker::Settings elastic(uint32_t worldSize, WorkerId id) {
  SimulatedWorker::Settings settings = rankOf(worldSize, id);
  settings.linkOptions = link_options::kElastic;
  return settings;
}

void shutDown(SimulatedWorker& self) {
  for (int round = 0; round < 2; ++round) {
    self.totals.push_back(self.membership->sum("join" + std::to_string(round), {1, 1}, [] {}));
  }
  self.membership->waitForOthersToFinish(self.totals.back(), [] { return std::set<WorkerId>(); });
}

} // namespace

TEST_CASE(
    "an elastic group begins when as many as its world size are there", "[membership_elastic]") {
  SimulatedGroup group(1);
  for (WorkerId id = 0; id < 3; ++id) {
    SimulatedWorker::Settings settings = elastic(3, id);
    settings.start = seconds(id);
    group.add(settings, [](SimulatedWorker& self) { self.start(); });
  }
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == Names(3));
  for (const auto& worker : group.workers) {
    CHECK(namesIn(worker->roster) == Names{"w0", "w1", "w2"});
    CHECK(worker->end - Clock::TimePoint() >= seconds(2));
  }
}

TEST_CASE("workers of an elastic group are replaced, and others join", "[membership_elastic]") {
  for (const unsigned seed : seeds(100)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    uint64_t ended = 0; // the incarnation
    for (WorkerId id = 0; id < 3; ++id) {
      group.add(elastic(3, id), [&](SimulatedWorker& self) {
        self.start();
        if (self.settings.id == 1) {
          ended = self.membership->self().incarnation;
          return;
        }
        self.scheduler->sleepFor(seconds(5));
        shutDown(self);
      });
    }
    for (const WorkerId id : {1, 7}) {
      SimulatedWorker::Settings settings = elastic(3, id);
      settings.start = seconds(1);
      settings.hasEnded = [&](const WorkerRecord& worker, bool) {
        return worker.incarnation == ended;
      };
      group.add(settings, [](SimulatedWorker& self) {
        self.start();
        CHECK(self.membership->cameLater());
        shutDown(self);
      });
    }
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == Names(5));
    for (const auto& worker : group.workers) {
      if (!worker->totals.empty()) {
        CHECK(worker->totals.back().present == std::set<WorkerId>{0, 1, 2, 7});
        CHECK(worker->totals.back().started == 4);
      }
    }
  }
}

// Each of them is in the sum of all, or is told that it comes too late.
TEST_CASE(
    "who joins an elastic group that shuts down is waited for or refused", "[membership_elastic]") {
  size_t refused = 0;
  size_t joined = 0;
  for (const unsigned seed : seeds(200)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 2; ++id) {
      group.add(elastic(2, id), [](SimulatedWorker& self) {
        self.start();
        shutDown(self);
      });
    }
    SimulatedWorker& late = group.add(elastic(2, 5), [](SimulatedWorker& self) {
      self.scheduler->sleepFor(std::chrono::microseconds(self.scheduler->draw(3000)));
      self.start();
      shutDown(self);
    });
    REQUIRE(group.run() == kNobody);
    if (late.error.empty()) {
      ++joined;
    } else {
      ++refused;
      CHECK(late.error == "worker 'w5' (rank 5) comes too late: the RPC group shuts down");
    }
    for (const auto& worker : group.workers) {
      if (worker->error.empty()) {
        CHECK(worker->totals.size() == 2);
        CHECK(worker->totals.back() == group.workers[0]->totals.back());
        CHECK(worker->totals.back().present.contains(worker->settings.id));
      }
    }
  }
  CHECK(refused > 0);
  CHECK(joined > 0);
}

TEST_CASE("the survivors of an elastic group shut down without the dead", "[membership_elastic]") {
  for (const unsigned seed : seeds(100)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 4; ++id) {
      group.add(elastic(4, id), [&](SimulatedWorker& self) {
        self.start();
        if (self.settings.id == 3) {
          return;
        }
        if (self.settings.id == 0) {
          self.scheduler->sleepFor(milliseconds(self.scheduler->draw(100)));
          self.membership->remove(group.workers[3]->membership->self());
        }
        shutDown(self);
      });
    }
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == Names(4));
    CHECK(group.workers[1]->totals.back().present == std::set<WorkerId>{0, 1, 2});
  }
}

TEST_CASE("all workers of a group have to be elastic, or none", "[membership_elastic]") {
  SimulatedGroup group(1);
  group.add(elastic(2, 0), [](SimulatedWorker& self) { self.start(); });
  SimulatedWorker::Settings settings = elastic(2, 1);
  settings.linkOptions = 0;
  settings.start = seconds(1);
  group.add(settings, [](SimulatedWorker& self) { self.start(); });
  REQUIRE(group.run() == kNobody);
  const std::string sentence =
      "worker 'w0' (rank 0) lets the group change (elastic=True) but worker 'w1' (rank 1) does "
      "not: "
      "give all workers the same `elastic`";
  CHECK(group.errors() == Names{sentence, sentence});
}
