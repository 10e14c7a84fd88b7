// Workers that a handler of a signal takes out of the shutdown: the others do not wait for them.
#include <catch2/catch.hpp>

#include "backend/membership/membership.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;
const std::string kInterrupted =
    "the RPC group cannot shut down gracefully: worker 'w1' (rank 1) was interrupted in "
    "rpc.shutdown()";
const auto kNotInterrupted = [] {};

} // namespace

TEST_CASE("a worker that is interrupted in a round ends it on all", "[membership_interruption]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    bool interrupted = false;
    group.addStatic(4, [&](SimulatedWorker& self) {
      self.start();
      if (self.settings.id == 3) {
        group.scheduler.sleepFor(seconds(seed % 2 * 10)); // comes before that, or long after
      }
      const bool isMissing = self.settings.id == 2; // it never comes
      if (isMissing) {
        return;
      }
      try {
        self.membership->sum("reach0", {0, 0}, [&] {
          if (self.settings.id == 1 && group.scheduler.now() - Clock::TimePoint() >= seconds(2)) {
            throw Interrupted();
          }
        });
      } catch (const Interrupted&) {
        interrupted = true;
      }
    });
    REQUIRE(group.run() == kNobody);
    CHECK(interrupted);
    CHECK(group.errors() == std::vector<std::string>{kInterrupted, "", "", kInterrupted});
    CHECK(group.workers[0]->end - Clock::TimePoint() < milliseconds(3500));
    CHECK(
        group.workers[1]->end - Clock::TimePoint() <
        milliseconds(2300)); // tells, and waits for nobody
  }
}

TEST_CASE(
    "a worker that is interrupted between two rounds ends the shutdown",
    "[membership_interruption]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.addStatic(3, [&](SimulatedWorker& self) {
      self.start();
      self.membership->sum("reach0", {0, 0}, kNotInterrupted);
      if (self.settings.id == 1) {
        try {
          self.membership->shutDownTogether([] { throw Interrupted(); });
        } catch (const Interrupted&) {
          return;
        }
      }
      self.membership->sum("join1", {0, 0}, kNotInterrupted);
    });
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>{kInterrupted, "", kInterrupted});
  }
}

TEST_CASE(
    "rank 0 is interrupted at once where nobody waits for its store", "[membership_interruption]") {
  SimulatedGroup group(1);
  group.addStatic(2, [&](SimulatedWorker& self) {
    self.start();
    if (self.settings.id == 0) {
      const auto begin = group.scheduler.now();
      self.membership->interruptShutdown();
      CHECK(group.scheduler.now() - begin < milliseconds(100));
    }
  });
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == std::vector<std::string>(2));
}

TEST_CASE("of workers that fail all throw the first sentence", "[membership_interruption]") {
  for (const unsigned seed : seeds(40)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.addStatic(3, [&](SimulatedWorker& self) {
      self.start();
      self.membership->shutDownTogether(
          [&] { throw std::runtime_error(self.settings.name + " has failed"); });
    });
    REQUIRE(group.run() == kNobody);
    const auto errors = group.errors();
    CHECK_THAT(errors[0], Catch::EndsWith("has failed"));
    CHECK(errors == std::vector<std::string>(3, errors[0]));
  }
}

TEST_CASE("a system clock's sleep ends when it is interrupted", "[membership_interruption]") {
  const auto end = std::chrono::steady_clock::now() + milliseconds(20);
  SystemClock clock([&] {
    if (std::chrono::steady_clock::now() >= end) {
      throw Interrupted();
    }
  });
  CHECK_THROWS_AS(clock.sleepFor(std::chrono::hours(1)), Interrupted);
}
