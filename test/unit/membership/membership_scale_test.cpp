// What many workers ask of the store. Each test prints it, and bounds it by about twice what was measured.
#include <catch2/catch.hpp>
#include <cmath>

#include "backend/membership/membership.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;

// A sanitizer makes each change of threads, and each record that is read, many times as slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kMany = 200;
#else
constexpr uint32_t kMany = 1000;
#endif

// One worker starts each millisecond, and an operation takes one at most.
SimulatedWorker::Settings oneOfMany(uint32_t worldSize, WorkerId id) {
  SimulatedWorker::Settings settings;
  settings.id = id;
  settings.worldSize = worldSize;
  settings.start = milliseconds(id);
  settings.store.maxLatency = milliseconds(1);
  return settings;
}

// Catch2 prints it also where all is well.
void report(const std::string& what, const StoreTraffic& traffic) {
  WARN(what << ": " << traffic.describe());
}

std::string numberOf(uint32_t workers) {
  return std::to_string(workers) + " workers ";
}

// Of k workers that try, about the square root of k * pi / 2 do in vain before one has seen the latest roster.
void joinAtOnce(uint32_t workers, unsigned seed) {
  CAPTURE(seed);
  SimulatedGroup group(seed);
  group.addStatic(workers, [](SimulatedWorker& self) { self.start(); });
  REQUIRE(group.run() == kNobody);
  REQUIRE(group.errors() == std::vector<std::string>(workers));
  report(numberOf(workers) + "join a static group at once", group.store.traffic());
  CHECK(static_cast<double>(group.store.traffic().compareSets) <= 2 * std::pow(workers, 1.5));
}

} // namespace

TEST_CASE("a thousand workers of a static group join and shut down", "[membership_scale]") {
  SimulatedGroup group(seeds(1).front());
  StoreTraffic joined;
  for (WorkerId id = 0; id < static_cast<WorkerId>(kMany); ++id) {
    group.add(oneOfMany(kMany, id), [&](SimulatedWorker& self) {
      self.start();
      group.scheduler.sleepFor(seconds(5));
      if (joined.operations() == 0) {
        joined = group.store.traffic(); // all have joined, and none has begun to shut down
      }
      for (const std::string round : {"reach0", "join1"}) {
        self.totals.push_back(self.membership->sum(round, {2, 1}, [] {}));
      }
      self.membership->waitForOthersToFinish();
    });
  }
  REQUIRE(group.run() == kNobody);
  REQUIRE(group.errors() == std::vector<std::string>(kMany));
  for (const auto& worker : group.workers) {
    REQUIRE(worker->roster.isComplete());
    REQUIRE(worker->totals[1].started == 2 * kMany);
    REQUIRE(worker->totals[1].finished == kMany);
  }
  const StoreTraffic shutDown = group.store.traffic().since(joined);
  report(numberOf(kMany) + "join a static group, one each millisecond", joined);
  report(numberOf(kMany) + "shut down in two rounds", shutDown);
  CHECK(joined.compareSets <= 7 * kMany);
  CHECK(joined.gets <= 3 * kMany); // the third: who is missing has announced itself
  CHECK(joined.checks <= 220 * kMany); // all but the last wait for those who come later
  CHECK(joined.bytes <= uint64_t{500} * kMany * kMany);
  CHECK(shutDown.adds == 2 * kMany);
  CHECK(shutDown.sets == 4 * kMany); // has begun, two rounds, has finished
  CHECK(shutDown.checks <= 90 * kMany);
  CHECK(shutDown.compareSets == 2);
  CHECK(shutDown.gets == 2 * (kMany + 1)); // the last in each round gets all numbers at once
}

TEST_CASE("a thousand workers join a dynamic group and leave it", "[membership_scale]") {
  SimulatedGroup group(seeds(1).front());
  StoreTraffic joined;
  for (WorkerId id = 0; id < static_cast<WorkerId>(kMany); ++id) {
    group.add(oneOfMany(0, id), [&](SimulatedWorker& self) {
      self.start();
      group.scheduler.sleepFor(seconds(5));
      if (joined.operations() == 0) {
        joined = group.store.traffic();
      }
      self.membership->leave();
    });
  }
  REQUIRE(group.run() == kNobody);
  REQUIRE(group.errors() == std::vector<std::string>(kMany));
  const StoreTraffic left = group.store.traffic().since(joined);
  CHECK(group.storedRoster().workers.empty());
  report(numberOf(kMany) + "join a dynamic group, one each millisecond", joined);
  report(numberOf(kMany) + "leave it, one each millisecond", left);
  CHECK(joined.compareSets <= 7 * kMany);
  CHECK(joined.gets + joined.checks == 0);
  CHECK(joined.bytes <= uint64_t{500} * kMany * kMany);
  CHECK(left.compareSets <= 4 * kMany);
  CHECK(left.gets == kMany);
}

TEST_CASE("a hundred workers join at once", "[membership_scale]") {
  for (const unsigned seed : seeds(5)) {
    joinAtOnce(100, seed);
  }
}

// Run by hand: it takes half a minute.
TEST_CASE("a thousand workers join at once", "[.][membership_contention]") {
  joinAtOnce(1000, seeds(1).front());
}
