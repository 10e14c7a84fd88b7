#include "test/unit/support/scheduler.h"

#include <catch2/catch.hpp>
#include <stdexcept>

#include "test/unit/support/seeds.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;

// Which of three threads ran when.
std::string orderOf(unsigned seed) {
  Scheduler scheduler(seed);
  std::string order;
  for (const char name : {'a', 'b', 'c'}) {
    scheduler.add(std::string(1, name), [&scheduler, &order, name] {
      for (int step = 0; step < 10; ++step) {
        order += name;
        if (scheduler.draw(3) == 0) {
          scheduler.sleepFor(milliseconds(scheduler.draw(5)));
        } else {
          scheduler.yield();
        }
      }
    });
  }
  CHECK(scheduler.run() == kNobody);
  return order;
}

} // namespace

TEST_CASE("a seed decides the order in which a scheduler's threads run", "[scheduler]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    const std::string order = orderOf(seed);
    CHECK(order.size() == 30);
    CHECK(orderOf(seed) == order);
    CHECK(orderOf(seed + 1) != order);
  }
}

TEST_CASE("a scheduler without threads has nothing to do", "[scheduler]") {
  Scheduler scheduler(1);
  CHECK(scheduler.run() == kNobody);
}

TEST_CASE("a scheduler's clock jumps to when the next thread wakes up", "[scheduler]") {
  Scheduler scheduler(1);
  const auto zero = scheduler.now();
  std::vector<std::string> events;
  const auto note = [&](const std::string& name) {
    const auto passed = scheduler.now() - zero;
    events.push_back(name + std::to_string(std::chrono::duration_cast<seconds>(passed).count()));
  };
  scheduler.add("a", [&] {
    note("a");
    scheduler.sleepFor(seconds(200));
    note("a");
  });
  scheduler.add(
      "b",
      [&] {
        note("b");
        scheduler.sleepFor(seconds(50));
        note("b");
        scheduler.yield();
        note("b");
      },
      seconds(100));
  CHECK(scheduler.run() == kNobody);
  CHECK(events == std::vector<std::string>{"a0", "b100", "b150", "b150", "a200"});
}

TEST_CASE("a thread that waits for a change goes on after it", "[scheduler]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    Scheduler scheduler(seed);
    bool there = false;
    int seen = 0;
    for (int i = 0; i < 3; ++i) {
      scheduler.add("reader", [&] {
        while (!there) {
          scheduler.waitForChange("it");
        }
        ++seen;
      });
    }
    scheduler.add("writer", [&] {
      scheduler.sleepFor(seconds(1));
      there = true;
      scheduler.changed();
    });
    CHECK(scheduler.run() == kNobody);
    CHECK(seen == 3);
  }
}

TEST_CASE("a scheduler ends threads that wait for ever, and says for what", "[scheduler]") {
  Scheduler scheduler(1);
  bool unwound = false;
  scheduler.add("a", [&] {
    try {
      scheduler.waitForChange("godot");
    } catch (const std::exception&) {
      FAIL("not an error that code under test could take for its own");
    } catch (const Scheduler::Halted&) {
      unwound = true;
      throw;
    }
  });
  scheduler.add("b", [&] { scheduler.sleepFor(seconds(1)); });
  CHECK(
      scheduler.run() ==
      std::vector<std::string>{"a waits for godot and nobody is left to wake it"});
  CHECK(unwound);
}

TEST_CASE("a scheduler ends threads that go on for too long", "[scheduler]") {
  Scheduler::Limits limits;
  limits.time = seconds(60);
  limits.steps = 1000;
  Scheduler scheduler(1, limits);
  scheduler.add("late", [] {}, seconds(61));
  SECTION("in time") {
    scheduler.add("a", [&] {
      for (;;) {
        scheduler.sleepFor(seconds(1));
      }
    });
    CHECK_THAT(
        scheduler.run(),
        Catch::UnorderedEquals(
            std::vector<std::string>{"a is busy after 60 s", "late is busy after 60 s"}));
  }
  SECTION("in steps") {
    scheduler.add("a", [&] {
      for (;;) {
        scheduler.yield();
      }
    });
    CHECK_THAT(
        scheduler.run(),
        Catch::UnorderedEquals(
            std::vector<std::string>{
                "a is busy after 1000 steps", "late waits for its start after 1000 steps"}));
  }
}

TEST_CASE("a scheduler reports what its threads throw", "[scheduler]") {
  Scheduler scheduler(1);
  scheduler.add("a", [] { throw std::runtime_error("no paper"); });
  CHECK(scheduler.run() == std::vector<std::string>{"a threw: no paper"});
}
