#include "backend/transport/spin_gate.h"

#include <catch2/catch.hpp>

using namespace torchwire;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr microseconds kMaxSpin{100};

// A gate and a clock of its own.
struct Gate {
  SpinGate gate{kMaxSpin};
  SpinGate::Clock::time_point now{std::chrono::hours(1)};

  void events(int count, SpinGate::Duration apart) {
    for (int i = 0; i < count; ++i) {
      now += apart;
      gate.noteEvent(now);
    }
  }
  bool spinsAfter(SpinGate::Duration wait) const {
    return gate.shouldSpin(now + wait);
  }
};

/// A gate that has seen so many waits, each as long.
WaitGate after(int count, WaitGate::Duration wait, WaitGate gate = WaitGate(kMaxSpin)) {
  for (int i = 0; i < count; ++i) {
    gate.noteWait(wait);
  }
  return gate;
}

} // namespace

TEST_CASE("nobody spins before anything has happened", "[spin_gate]") {
  const Gate idle;
  CHECK_FALSE(idle.spinsAfter(seconds(0)));
  CHECK_FALSE(idle.spinsAfter(seconds(10)));
}

TEST_CASE("one event is no reason to spin", "[spin_gate]") {
  Gate gate;
  gate.events(1, seconds(1));
  CHECK_FALSE(gate.spinsAfter(microseconds(0)));
}

TEST_CASE("a few quick events are", "[spin_gate]") {
  Gate gate;
  gate.events(5, microseconds(10));
  CHECK(gate.spinsAfter(microseconds(0)));
}

TEST_CASE(
    "a gate spins for about twice the usual distance of events, and then sleeps", "[spin_gate]") {
  Gate gate;
  gate.events(100, microseconds(20));
  CHECK(gate.spinsAfter(microseconds(39)));
  CHECK_FALSE(gate.spinsAfter(microseconds(60)));
  CHECK_FALSE(gate.spinsAfter(seconds(1)));
}

TEST_CASE("events at the same moment leave a gate spinning for a moment more", "[spin_gate]") {
  Gate gate;
  gate.events(1000, microseconds(0));
  CHECK(gate.spinsAfter(microseconds(5)));
  CHECK_FALSE(gate.spinsAfter(microseconds(20)));
}

TEST_CASE("nobody spins longer than the longest spin", "[spin_gate]") {
  Gate gate;
  gate.events(100, microseconds(80));
  CHECK(gate.spinsAfter(microseconds(99)));
  CHECK_FALSE(gate.spinsAfter(kMaxSpin));
}

TEST_CASE("events further apart than the longest spin are slept through", "[spin_gate]") {
  const auto apart = GENERATE(microseconds(101), microseconds(200), microseconds(1000000));
  Gate gate;
  gate.events(100, microseconds(10));
  gate.events(100, apart);
  CHECK_FALSE(gate.spinsAfter(microseconds(0)));
}

TEST_CASE("one pause does not make a gate forget that events come close", "[spin_gate]") {
  const auto pause =
      GENERATE(SpinGate::Duration(milliseconds(1)), SpinGate::Duration(std::chrono::hours(24)));
  Gate gate;
  gate.events(100, microseconds(10));
  gate.events(1, pause);
  CHECK(gate.spinsAfter(microseconds(0)));
}

TEST_CASE("after many pauses a few quick events are enough to spin again", "[spin_gate]") {
  Gate gate;
  gate.events(100, seconds(1));
  REQUIRE_FALSE(gate.spinsAfter(microseconds(0)));
  gate.events(4, microseconds(10));
  CHECK(gate.spinsAfter(microseconds(0)));
}

// ---- waits ----------------------------------------------------------------------------------------

TEST_CASE("who has not waited yet does not spin", "[spin_gate]") {
  CHECK(WaitGate(kMaxSpin).spin() == microseconds(0));
}

TEST_CASE("a few short waits are a reason to spin", "[spin_gate]") {
  CHECK(after(1, microseconds(10)).spin() == microseconds(0));
  CHECK(after(5, microseconds(10)).spin() > microseconds(10));
}

TEST_CASE("who waits spins for about twice the usual wait", "[spin_gate]") {
  const auto spin = after(100, microseconds(20)).spin();
  CHECK(spin >= microseconds(40));
  CHECK(spin <= microseconds(60));
}

TEST_CASE("who waits spins for a moment even if the answer always is there", "[spin_gate]") {
  const auto spin = after(100, microseconds(0)).spin();
  CHECK(spin > microseconds(0));
  CHECK(spin <= microseconds(20));
}

TEST_CASE("who waits spins no longer than the longest spin", "[spin_gate]") {
  CHECK(after(100, microseconds(90)).spin() == kMaxSpin);
}

TEST_CASE("waits longer than the longest spin are slept through", "[spin_gate]") {
  const auto wait = GENERATE(microseconds(105), microseconds(1000), microseconds(1000000));
  const WaitGate quick = after(100, microseconds(10));
  CHECK(after(100, wait, quick).spin() == microseconds(0));
}

TEST_CASE("one long wait does not make a gate forget the short ones", "[spin_gate]") {
  const WaitGate quick = after(100, microseconds(10));
  CHECK(after(1, std::chrono::hours(24), quick).spin() > microseconds(0));
}

TEST_CASE("after long waits a few short ones are enough to spin again", "[spin_gate]") {
  const WaitGate slow = after(100, seconds(1));
  REQUIRE(slow.spin() == microseconds(0));
  CHECK(after(4, microseconds(10), slow).spin() > microseconds(0));
}
