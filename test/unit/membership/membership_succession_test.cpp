// Workers that come in the place of such as have ended without leaving, in any order of the store operations.
#include <catch2/catch.hpp>
#include <set>

#include "backend/membership/membership.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;

const auto kJoin = [](SimulatedWorker& self) { self.start(); };

} // namespace

TEST_CASE("a worker takes the place of one that has ended", "[membership_succession]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    std::set<uint64_t> ended; // incarnations
    const auto stay = [](SimulatedWorker& self) { self.start(); };
    group.add(rankOf(0, 0), stay);
    group.add(rankOf(0, 1), [&](SimulatedWorker& self) {
      self.start();
      ended.insert(self.membership->self().incarnation);
    });
    SimulatedWorker::Settings again = rankOf(0, 1);
    again.start = seconds(1);
    again.hasEnded = [&](const WorkerRecord& worker, bool) {
      return ended.contains(worker.incarnation);
    };
    SimulatedWorker& newcomer = group.add(again, stay);
    // Who has seen it die takes it off the list, before, after or at the same time.
    SimulatedWorker::Settings survivor = rankOf(0, 2);
    survivor.start = milliseconds(990);
    group.add(survivor, [&](SimulatedWorker& self) {
      self.start();
      self.scheduler->sleepFor(milliseconds(self.scheduler->draw(20)));
      const WorkerRecord* dead = self.roster.find(1);
      if (dead != nullptr && ended.contains(dead->incarnation)) {
        self.membership->remove(*dead);
      }
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(4));
    const Roster roster = group.storedRoster();
    CHECK(namesIn(roster) == std::vector<std::string>{"w0", "w1", "w2"});
    CHECK(roster.find(1)->incarnation == newcomer.membership->self().incarnation);
    CHECK(newcomer.roster.find(1)->incarnation == newcomer.membership->self().incarnation);
  }
}

TEST_CASE(
    "a worker that has ended makes room for its name and for its rank", "[membership_succession]") {
  SimulatedGroup group(1);
  group.add(rankOf(0, 0), kJoin);
  group.add(rankOf(0, 1), kJoin);
  SimulatedWorker::Settings settings = rankOf(0, 1);
  settings.name = "w0";
  settings.start = seconds(1);
  std::string remaining;
  settings.hasEnded = [&](const WorkerRecord& worker, bool asksHost) {
    return asksHost && worker.name != remaining;
  };
  SECTION("both of two") {
    group.add(settings, kJoin);
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(3));
    CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w0"});
  }
  SECTION("not if the other lives") {
    remaining = "w1";
    const SimulatedWorker& newcomer = group.add(settings, kJoin);
    REQUIRE(group.run() == kNobody);
    CHECK_THAT(newcomer.error, Catch::Contains("rank 1 is not unique"));
    CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w0", "w1"});
  }
}

TEST_CASE(
    "those that have ended are not among those whom a worker finds", "[membership_succession]") {
  SimulatedGroup group(1);
  group.add(rankOf(0, 0), kJoin);
  group.add(rankOf(0, 1), kJoin);
  SimulatedWorker::Settings settings = rankOf(0, 2);
  settings.start = seconds(1);
  settings.hasEnded = [&](const WorkerRecord& worker, bool asksHost) {
    CHECK_FALSE(asksHost);
    return worker.name == "w0";
  };
  const SimulatedWorker& newcomer = group.add(settings, kJoin);
  REQUIRE(group.run() == kNobody);
  CHECK(namesIn(newcomer.roster) == std::vector<std::string>{"w1", "w2"});
  CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w1", "w2"});
}

TEST_CASE(
    "nobody takes a place in a static group of which somebody lives", "[membership_succession]") {
  SimulatedGroup group(1);
  group.addStatic(2, kJoin);
  SimulatedWorker::Settings settings = rankOf(2, 1);
  settings.start = seconds(1);
  settings.hasEnded = [](const WorkerRecord& worker, bool) { return worker.name == "w1"; };
  const SimulatedWorker& newcomer = group.add(settings, kJoin);
  REQUIRE(group.run() == kNobody);
  CHECK_THAT(newcomer.error, Catch::Contains("rank 1 is not unique"));
}

// As under torchrun --max-restarts, whose store outlives the workers.
TEST_CASE(
    "a static group begins in the place of one of which nobody lives", "[membership_succession]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    constexpr size_t kSize = 3;
    std::set<uint64_t> ended;
    const size_t come = 1 + seed % kSize; // to the first attempt, which may not even have begun
    for (int attempt = 0; attempt < 3; ++attempt) {
      for (size_t id = 0; id < (attempt == 0 ? come : kSize); ++id) {
        SimulatedWorker::Settings settings = rankOf(kSize, static_cast<WorkerId>(id));
        settings.start = seconds(100 * attempt);
        settings.hasEnded = [&](const WorkerRecord& worker, bool) {
          return ended.contains(worker.incarnation);
        };
        group.add(settings, [&, attempt](SimulatedWorker& self) {
          try {
            self.start();
            self.totals.push_back(self.membership->sum("join0", {1, attempt}, [] {}));
          } catch (const std::runtime_error&) {
            if (attempt > 0) {
              throw;
            }
          }
          ended.insert(self.membership->self().incarnation);
        });
      }
    }
    REQUIRE(group.run() == kNobody);
    for (size_t i = come; i < group.workers.size(); ++i) {
      const SimulatedWorker& worker = *group.workers[i];
      const int64_t attempt = i < come + kSize ? 1 : 2;
      CHECK(worker.error.empty());
      REQUIRE(worker.totals.size() == 1);
      CHECK(worker.totals[0] == Totals{kSize, attempt * static_cast<int64_t>(kSize)});
      CHECK(namesIn(worker.roster) == std::vector<std::string>{"w0", "w1", "w2"});
    }
  }
}

// Two workers of a group that cannot start say so and end before the third comes, which is slow to start.
TEST_CASE(
    "who comes after the end of a group that could not start hears why",
    "[membership_succession]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    std::set<uint64_t> ended;
    const auto add = [&](WorkerId id, const std::string& name, seconds start) -> SimulatedWorker& {
      SimulatedWorker::Settings settings = rankOf(3, id);
      settings.name = name;
      settings.start = start;
      settings.timeout = seconds(5);
      settings.hasEnded = [&](const WorkerRecord& worker, bool) {
        return ended.contains(worker.incarnation);
      };
      return group.add(settings, [&](SimulatedWorker& self) {
        try {
          self.start();
        } catch (const std::runtime_error&) {
          ended.insert(self.membership->self().incarnation);
          throw;
        }
      });
    };
    add(0, "twin", seconds(0));
    add(1, "twin", seconds(0));
    const SimulatedWorker& late = add(2, "late", seconds(10));
    // As a launcher starts them again, with other names.
    for (WorkerId id = 0; id < 3; ++id) {
      add(id, "w" + std::to_string(id), seconds(20));
    }
    REQUIRE(group.run() == kNobody);
    CHECK_THAT(late.error, Catch::Contains("worker name 'twin' is not unique"));
    CHECK(late.end - Clock::TimePoint() < seconds(11));
    for (size_t i = group.workers.size() - 3; i < group.workers.size(); ++i) {
      CHECK(group.workers[i]->error.empty());
    }
  }
}
