// Partitions as links see them.
#include <catch2/catch.hpp>

#include "test/unit/support/fault_stage.h"

using namespace torchwire;
using namespace torchwire::faults;
using Texts = std::vector<std::string>;

namespace {

StageKind anyKind() {
  return GENERATE(StageKind::pumped, StageKind::synchronous, StageKind::threaded, StageKind::self);
}

// Between a and b, and on a's link to itself.
Plan cutFor(double seconds, double after = 0) {
  Rule rule = ruleOf(Action::partition, Phase::request);
  rule.from = {"a"};
  rule.to = {"a", "b"};
  rule.seconds.a = seconds;
  rule.after = after;
  return planOf({rule});
}

constexpr double kLong = 1000;

} // namespace

TEST_CASE(
    "a partition holds frames, and lets them go in order when it is over", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(0.1));
  const auto start = std::chrono::steady_clock::now();
  Texts expected;
  for (int i = 0; i < 10; ++i) {
    stage.call(std::to_string(i));
    expected.push_back("re " + std::to_string(i));
  }
  REQUIRE(stage.until([&] { return stage.answers().size() == expected.size(); }));
  CHECK(stage.answers() == expected);
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(50));
  CHECK(stage.until([&] { return stage.world.ledger.allCalled(); }));
  const auto log = stage.a.log->entries();
  REQUIRE(log.size() >= 10);
  CHECK(log[0].action == Action::partition);
  CHECK(log[0].phase == Phase::request);
  CHECK(log[0].occurrence == 1);
  CHECK(log[9].occurrence == 10);
  CHECK(log[0].callId == 1);
  CHECK(log[0].seconds > 0);
  CHECK(log[0].seconds <= 0.1);
}

TEST_CASE("a partition that is taken back lets frames go at once", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(kLong));
  const CallbackNote& note = stage.call("1");
  stage.call("2");
  CHECK(stage.settled([&] { return stage.served().empty() && !note.called(); }));
  stage.setPlan(planOf({ruleOf(Action::drop, Phase::inFlight)})); // other rules keep out of it
  CHECK(stage.until([&] { return note.succeeded(); }));
  CHECK(stage.settled([&] { return stage.served().empty(); }));

  stage.setPlan(cutFor(kLong));
  stage.call("3");
  stage.setPlan(planOf({}));
  CHECK(stage.until([&] { return stage.answers() == Texts{"re 3"}; }));
}

TEST_CASE("a partition that is prolonged holds what it has", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(0.02));
  stage.call("1");
  stage.setPlan(cutFor(0.1));
  CHECK(stage.until([&] { return stage.answers() == Texts{"re 1"}; }));
}

TEST_CASE("a partition begins when its time has come", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(kLong, kLong));
  stage.call("1");
  CHECK(stage.until([&] { return stage.answers() == Texts{"re 1"}; }));
  CHECK(stage.logged().empty());
}

TEST_CASE("a response is held as well", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, planOf({}), false);
  stage.call("1");
  REQUIRE(stage.until([&] { return stage.served().size() == 1; }));
  stage.setPlan(cutFor(kLong));
  const CallbackNote& note = stage.answer(1, "re 1");
  CHECK(stage.settled([&] { return !note.called(); }));
  CHECK(stage.logged() == Texts{"partition response 1"});
  stage.setPlan(planOf({}));
  CHECK(stage.until([&] { return stage.answers() == Texts{"re 1"}; }));
}

TEST_CASE("handshakes are held without an entry in the log", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(kLong));
  const CallbackNote& note = stage.send(bareFrame(FrameKind::goodbye));
  CHECK(stage.settled([&] { return !note.called(); }));
  CHECK(stage.logged().empty());
  stage.setPlan(planOf({}));
  CHECK(stage.until([&] { return note.succeeded(); }));
}

TEST_CASE("what a partition holds when the link closes is called back", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(kLong));
  const CallbackNote& first = stage.call("1");
  const CallbackNote& second = stage.call("2");
  stage.caller->close();
  CHECK(first.error().code() == ErrorCode::linkBroken);
  CHECK(second.error().code() == ErrorCode::linkBroken);
}

TEST_CASE("what a partition holds when the timer stops is called back", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(kLong));
  const CallbackNote& first = stage.call("1");
  stage.world.timer.stop();
  CHECK(first.error().code() == ErrorCode::linkBroken);
  CHECK(stage.call("2").error().code() == ErrorCode::linkBroken);
}

TEST_CASE("what was delayed is held when its time comes", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  Plan plan = cutFor(kLong);
  Rule delay = ruleOf(Action::delay, Phase::request);
  delay.seconds.a = 0.001;
  plan.rules.push_back(delay);
  FaultStage stage(kind, plan);
  stage.call("1");
  CHECK(stage.untilLogged({"delay request 1", "partition request 1"}));
  CHECK(stage.served().empty());
  stage.setPlan(planOf({}));
  CHECK(stage.until([&] { return stage.answers() == Texts{"re 1"}; }));
}

TEST_CASE(
    "a partition opens at most so often for as many calls back as frames", "[faulty_partition]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, cutFor(kLong), false);
  // Each frame that goes out sends another, from its callback: they queue up rather than nest.
  constexpr int kFrames = 5000;
  std::atomic<int> left{kFrames};
  std::function<void(const Error&)> another = [&](const Error& error) {
    if (!error && --left > 0) {
      stage.caller->send(callFrame(FrameKind::request, kCall, 1, "x"), another);
    }
  };
  stage.caller->send(callFrame(FrameKind::request, kCall, 1, "x"), another);
  stage.setPlan(cutFor(kLong, kLong)); // not quiet, so that the way is the long one
  CHECK(stage.until([&] { return stage.served().size() == kFrames; }));
}
