// The list of the dead in the store, in any order of the workers' store operations.
#include <catch2/catch.hpp>
#include <set>

#include "backend/membership/membership.h"
#include "backend/wire/deaths.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;

Death deathOf(const SimulatedWorker& worker, const std::string& reason = "it is silent") {
  const WorkerRecord& self = worker.membership->self();
  return {self.id, self.incarnation, reason};
}

} // namespace

TEST_CASE("the list of the dead has the latest of each rank", "[membership_deaths]") {
  Deaths deaths;
  deaths.add({2, 200, "of another rank"});
  for (uint64_t incarnation = 0; incarnation < 65; ++incarnation) {
    deaths.add({1, incarnation, std::to_string(incarnation)});
  }
  const Deaths read = Deaths::decode(deaths.encode());
  REQUIRE(read.all.size() == 65);
  CHECK(read.find(1, 0) == nullptr);
  CHECK(read.find(1, 1)->reason == "1");
  CHECK(read.find(1, 64)->reason == "64");
  CHECK(read.find(2, 200)->reason == "of another rank");
  CHECK_THROWS_AS(Deaths::decode({'n', 'o', 'n', 'e'}), FormatError);
  std::vector<char> cut = deaths.encode();
  cut.pop_back();
  CHECK_THROWS_AS(Deaths::decode(cut), FormatError);
}

TEST_CASE("all that see a worker die agree on why, and one has said it", "[membership_deaths]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    std::vector<Membership::Ruling> rulings;
    group.addStatic(5, [&](SimulatedWorker& self) {
      self.start();
      if (self.settings.id == 4) {
        return;
      }
      self.scheduler->sleepFor(milliseconds(self.scheduler->draw(3)));
      rulings.push_back(self.membership->declareDead(
          deathOf(*group.workers[4], "as " + self.settings.name + " says")));
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(5));
    REQUIRE(rulings.size() == 4);
    int news = 0;
    for (const Membership::Ruling& ruling : rulings) {
      CHECK(ruling.death.id == 4);
      CHECK(ruling.death.reason == rulings[0].death.reason);
      news += ruling.isNew ? 1 : 0;
    }
    CHECK(news == 1);
  }
}

// Cut off from each other, but not from the store.
TEST_CASE("of workers that take each other for dead some stay", "[membership_deaths]") {
  for (const unsigned seed : seeds(100)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    std::set<WorkerId> dead; // as they hear it
    std::set<WorkerId> over; // who finds itself on the list
    group.addStatic(4, [&](SimulatedWorker& self) {
      self.start();
      for (const auto& other : group.workers) {
        if (other->settings.id == self.settings.id || over.contains(self.settings.id)) {
          continue;
        }
        const Membership::Ruling ruling = self.membership->declareDead(deathOf(*other));
        dead.insert(ruling.death.id);
        if (ruling.death.id == self.settings.id) {
          CHECK_FALSE(ruling.isNew);
          over.insert(self.settings.id);
        }
      }
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(4));
    CHECK(dead.size() == 3); // one stays, for which all others are dead
    CHECK(over == dead);
  }
}

TEST_CASE("who is dead ends nobody's round", "[membership_deaths]") {
  SimulatedGroup group(1);
  group.addStatic(2, [&](SimulatedWorker& self) {
    self.start();
    const bool isOver = self.settings.id == 1;
    self.totals.push_back(self.membership->sum(
        "join0", {1, 1},
        [&] {
          if (isOver) {
            throw Membership::LeftOut("this worker takes part no more");
          }
        },
        [&] { return isOver ? std::set<WorkerId>() : std::set<WorkerId>{1}; }));
  });
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors()[0].empty());
}
