// A thousand workers, and what they ask of the store.
#include <catch2/catch.hpp>
#include <iostream>

#include "backend/membership/membership.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;
constexpr unsigned kSeed = 1;

void report(const std::string& what, const StoreTraffic& traffic) {
  std::cout << what << ": " << traffic.describe() << std::endl;
}

} // namespace

TEST_CASE("measure", "[membership_scale]") {
  const int n = std::atoi(std::getenv("N"));
  const int spread = std::atoi(std::getenv("SPREAD"));
  const int latency = std::atoi(std::getenv("LAT"));
  const bool dynamic = std::getenv("DYN") != nullptr;
  SimulatedGroup group(kSeed);
  StoreTraffic joined, summed;
  int count = 0;
  for (int id = 0; id < n; ++id) {
    SimulatedWorker::Settings settings;
    settings.id = id;
    settings.worldSize = dynamic ? 0 : n;
    settings.start = milliseconds(spread) * id / n;
    settings.store.maxLatency = std::chrono::microseconds(latency);
    group.add(settings, [&](SimulatedWorker& self) {
      self.start();
      if (dynamic) {
        if (++count == n) joined = group.store.traffic();
        self.scheduler->sleepFor(milliseconds(2000));
        self.membership->leave();
        return;
      }
      if (++count == n) joined = group.store.traffic();
      self.membership->sum("reach0", {0, 0}, [] {});
      self.membership->sum("join1", {1, 1}, [] {});
      if (++count == 2 * n) summed = group.store.traffic();
      self.membership->waitForOthersToFinish();
    });
  }
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == std::vector<std::string>(n));
  report("joined", joined);
  report("summed", summed.since(joined));
  report("all", group.store.traffic());
  std::cout << std::chrono::duration<double>(group.scheduler.now() - Clock::TimePoint()).count()
            << " s virtual\n";
}
