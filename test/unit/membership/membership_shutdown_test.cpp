// The rounds of a static group's shutdown, in any order of the workers' store operations.
#include <catch2/catch.hpp>
#include <random>

#include "backend/membership/membership.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;
const std::string kGone = "the RPC group cannot shut down gracefully: w4 is gone";

const auto kNotInterrupted = [] {};

} // namespace

TEST_CASE("all workers of a round get the same totals", "[membership_shutdown]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    constexpr int kRounds = 4;
    std::vector<Totals> wanted(kRounds, {0, 0});
    group.addStatic(5, [&](SimulatedWorker& self) {
      self.start();
      for (int round = 0; round < kRounds; ++round) {
        group.scheduler.sleepFor(milliseconds(group.scheduler.draw(5)));
        const auto started = static_cast<int64_t>(group.scheduler.draw(1000));
        wanted[round].started += started;
        wanted[round].finished += started / 2;
        self.totals.push_back(self.membership->sum(
            "join" + std::to_string(round), {started, started / 2}, kNotInterrupted));
      }
      self.membership->waitForOthersToFinish();
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(5));
    for (const auto& worker : group.workers) {
      REQUIRE(worker->totals.size() == kRounds);
      for (int round = 0; round < kRounds; ++round) {
        CHECK(worker->totals[round].started == wanted[round].started);
        CHECK(worker->totals[round].finished == wanted[round].finished);
      }
    }
  }
}

TEST_CASE("a round waits for a worker that comes hours later", "[membership_shutdown]") {
  Scheduler::Limits limits;
  limits.time = std::chrono::hours(4);
  SimulatedGroup group(1, limits);
  group.addStatic(3, [&](SimulatedWorker& self) {
    self.start();
    if (self.settings.id == 1) {
      group.scheduler.sleepFor(std::chrono::hours(3));
    }
    self.membership->sum("reach0", {0, 0}, kNotInterrupted);
  });
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == std::vector<std::string>(3));
  for (const auto& worker : group.workers) {
    const auto waited = worker->end - Clock::TimePoint() - std::chrono::hours(3);
    CHECK(waited < milliseconds(300));
  }
}

TEST_CASE("a worker that gives a round up ends it on all", "[membership_shutdown]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    const auto finder = static_cast<WorkerId>(seed % 4);
    SimulatedGroup group(seed);
    group.addStatic(5, [&](SimulatedWorker& self) {
      self.start();
      if (self.settings.id == 4) {
        return; // and never comes to the round
      }
      self.membership->sum("reach0", {0, 0}, [&] {
        const auto passed = group.scheduler.now() - Clock::TimePoint();
        if (self.settings.id == finder && passed >= seconds(2)) {
          throw std::runtime_error(kGone);
        }
      });
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>{kGone, kGone, kGone, kGone, ""});
    for (const auto& worker : group.workers) {
      CHECK(worker->end - Clock::TimePoint() < milliseconds(3500)); // rank 0 waits for 1 s at most
    }
  }
}

TEST_CASE("who knows that a worker has left ends the round of all", "[membership_shutdown]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.addStatic(3, [&](SimulatedWorker& self) {
      self.start();
      if (self.settings.id == 2) {
        return; // and never comes to the round
      }
      self.membership->sum(
          "reach0", {0, 0},
          [&] {
            if (self.settings.id == 0) {
              throw std::runtime_error(kGone);
            }
          },
          [&] { // the other one has only seen its process end
            return self.settings.id == 1 ? std::set<WorkerId>{2} : std::set<WorkerId>();
          });
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>{kGone, kGone, ""});
  }
}

// Who has the totals of the last round says goodbye, perhaps before others have looked.
TEST_CASE("a round that is complete is not given up", "[membership_shutdown]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    bool oneHasLeft = false;
    group.addStatic(5, [&](SimulatedWorker& self) {
      self.start();
      self.membership->sum("join0", {1, 1}, [&] {
        if (oneHasLeft) {
          throw std::runtime_error("one has left without waiting for the others");
        }
      });
      oneHasLeft = true;
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(5));
  }
}

TEST_CASE("rank 0 waits until the others need the store no more", "[membership_shutdown]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.addStatic(4, [&](SimulatedWorker& self) {
      self.start();
      if (self.settings.id == 3) {
        group.scheduler.sleepFor(seconds(2));
      }
      self.membership->waitForOthersToFinish();
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(4));
    const auto endOf = [&](size_t rank) { return group.workers[rank]->end - Clock::TimePoint(); };
    CHECK(endOf(0) >= seconds(2));
    CHECK(endOf(0) < milliseconds(2300));
    CHECK(endOf(1) < seconds(1));
    CHECK(endOf(2) < seconds(1));
  }
}

TEST_CASE("rank 0 does not wait for ever", "[membership_shutdown]") {
  SimulatedGroup group(1);
  group.addStatic(3, [&](SimulatedWorker& self) {
    self.start();
    if (self.settings.id != 2) {
      self.membership->waitForOthersToFinish();
    }
  });
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == std::vector<std::string>(3));
  CHECK(group.workers[0]->end - Clock::TimePoint() >= seconds(5));
  CHECK(group.workers[0]->end - Clock::TimePoint() < milliseconds(5300));
}

TEST_CASE("rank 0 does not wait for who has died, but for all others", "[membership_shutdown]") {
  const bool hasFinished = GENERATE(false, true); // the one that dies
  SimulatedGroup group(1);
  group.addStatic(4, [&](SimulatedWorker& self) {
    self.start();
    if (self.settings.id == 2) {
      group.scheduler.sleepFor(seconds(2));
    }
    if (self.settings.id != 3 || hasFinished) {
      self.membership->waitForOthersToFinish(Totals(), [] { return std::set<WorkerId>{3}; });
    }
  });
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == std::vector<std::string>(4));
  CHECK(group.workers[0]->end - Clock::TimePoint() >= seconds(2));
  CHECK(group.workers[0]->end - Clock::TimePoint() < milliseconds(2300));
}

namespace {

const auto kLastDied = [] { return std::set<WorkerId>{4}; };
const auto kNoneDied = [] { return std::set<WorkerId>(); };

} // namespace

// Some know of the death, others do not, and the dead one may have reported before: still all get the same sums.
TEST_CASE("a round is completed without the dead, alike on all", "[membership_shutdown]") {
  for (const unsigned seed : seeds(100)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    const bool reports = seed % 2 == 0;
    group.addStatic(5, [&](SimulatedWorker& self) {
      self.start();
      const WorkerId id = self.settings.id;
      group.scheduler.sleepFor(milliseconds(group.scheduler.draw(5)));
      if (id == 4 && !reports) {
        return;
      }
      const bool knows = id == 1 || (id < 4 && group.scheduler.draw(2) == 0);
      self.totals.push_back(self.membership->sum(
          "join0", {1 << id, 1}, kNotInterrupted,
          knows ? Membership::Dead(kLastDied) : Membership::Dead(kNoneDied)));
    });
    REQUIRE(group.run() == kNobody);
    const Totals& first = group.workers[0]->totals.at(0);
    const Totals without{15, 4, {4}};
    const Totals with{31, 5, {}};
    CHECK((first == without || (reports && first == with)));
    for (WorkerId id = 1; id < 4; ++id) {
      CHECK(group.workers[id]->totals.at(0) == first);
    }
  }
}

TEST_CASE("a worker that was taken for dead is told when it shuts down", "[membership_shutdown]") {
  SimulatedGroup group(1);
  group.addStatic(5, [&](SimulatedWorker& self) {
    self.start();
    if (self.settings.id == 4) {
      group.scheduler.sleepFor(seconds(30));
    }
    self.membership->sum("join0", {}, kNotInterrupted, kLastDied);
  });
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors()[0].empty());
  CHECK(group.errors()[4].find("has shut down without worker 'w4'") != std::string::npos);
}
