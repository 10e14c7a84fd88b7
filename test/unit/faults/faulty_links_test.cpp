// What each action does at each phase, on links of each kind.
#include <algorithm>
#include <catch2/catch.hpp>

#include "backend/faults/faulty_frame.h"
#include "backend/link/loopback_link.h"
#include "test/unit/support/fault_stage.h"

using namespace torchwire;
using namespace torchwire::faults;
using Texts = std::vector<std::string>;

namespace {

// A kind of link and how the test's output calls it.
StageKind anyKind() {
  return GENERATE(StageKind::pumped, StageKind::synchronous, StageKind::threaded, StageKind::self);
}

Phase anyPhaseOfCalls() {
  return GENERATE(Phase::request, Phase::inFlight, Phase::response);
}

// A rule that applies to the first message of a stream.
Plan once(Action action, Phase phase, double seconds = 0) {
  Rule rule = ruleOf(action, phase);
  rule.nth = {1};
  rule.seconds.a = seconds;
  return planOf({rule});
}

std::string loggedOnce(Action action, Phase phase) {
  return std::string(nameOf(action)) + " " + nameOf(phase) + " 1";
}

constexpr double kShort = 0.02;
constexpr double kMeanwhile = 0.5; // a call is over by then, also on a busy machine
constexpr double kLong = 1000;

} // namespace

TEST_CASE("without rules a call goes its way", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, planOf({}));
  const CallbackNote& first = stage.call("1");
  const CallbackNote& second = stage.call("2");
  REQUIRE(stage.until([&] { return stage.answers().size() == 2; }));
  CHECK(stage.until([&] { return first.succeeded() && second.succeeded(); }));
  CHECK(stage.served() == Texts{"1", "2"});
  CHECK(stage.answers() == Texts{"re 1", "re 2"});
  CHECK(stage.logged().empty());
}

TEST_CASE("a frame that is dropped gets lost without a word", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  FaultStage stage(kind, once(Action::drop, phase));
  const CallbackNote& first = stage.call("1");
  stage.call("2");
  REQUIRE(stage.until([&] { return stage.answers() == Texts{"re 2"}; }));
  CHECK(stage.until([&] { return first.succeeded(); }));
  CHECK(stage.settled([&] { return stage.answers() == Texts{"re 2"}; }));
  CHECK(stage.served() == (phase == Phase::response ? Texts{"1", "2"} : Texts{"2"}));
  CHECK(stage.logged() == Texts{loggedOnce(Action::drop, phase)});
}

TEST_CASE("a request that fails is not sent, and its caller knows why", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::fail, Phase::request));
  const CallbackNote& first = stage.call("1");
  CHECK(first.error().code() == ErrorCode::injected);
  CHECK_THAT(
      first.error().message(),
      Catch::StartsWith("RPCErr:2:") && Catch::Contains("worker 'a'") &&
          Catch::Contains("rule 'fail'"));
  stage.call("2");
  REQUIRE(stage.until([&] { return stage.answers() == Texts{"re 2"}; }));
  CHECK(stage.served() == Texts{"2"});
}

TEST_CASE(
    "a request that fails in flight is served, and its caller has an error", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::fail, Phase::inFlight));
  stage.call("1");
  REQUIRE(stage.until([&] { return stage.answers().size() == 2; }));
  CHECK(stage.served() == Texts{"1"});
  CHECK_THAT(stage.answers()[0], Catch::StartsWith("! RPCErr:2:"));
  CHECK(stage.answers()[1] == "re 1"); // the call table drops it as late
}

TEST_CASE("a response that fails is an error in its place", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::fail, Phase::response));
  stage.call("1");
  stage.call("2");
  REQUIRE(stage.until([&] { return stage.answers().size() == 2; }));
  CHECK(stage.served() == Texts{"1", "2"});
  CHECK_THAT(
      stage.answers()[0],
      Catch::StartsWith(
          "! RPCErr:2:a call from worker 'a' to worker '" +
          std::string(stage.isSelf() ? "a" : "b")));
  CHECK(stage.answers()[1] == "re 2");
}

TEST_CASE("a frame that is delayed goes on later, and others overtake it", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  FaultStage stage(kind, once(Action::delay, phase, kMeanwhile));
  stage.call("1");
  stage.call("2");
  REQUIRE(stage.until([&] { return stage.answers().size() == 2; }));
  CHECK(stage.answers() == Texts{"re 2", "re 1"});
  CHECK(stage.served() == (phase == Phase::response ? Texts{"1", "2"} : Texts{"2", "1"}));
  CHECK(stage.logged() == Texts{loggedOnce(Action::delay, phase)});
}

TEST_CASE("a frame that is duplicated arrives twice", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  FaultStage stage(kind, once(Action::duplicate, phase));
  const CallbackNote& note = stage.call("1");
  REQUIRE(stage.until([&] { return stage.answers().size() == 2; }));
  CHECK(stage.until([&] { return note.succeeded(); }));
  CHECK(stage.served() == (phase == Phase::response ? Texts{"1"} : Texts{"1", "1"}));
  CHECK(stage.settled([&] { return stage.answers() == Texts{"re 1", "re 1"}; }));
}

TEST_CASE("a frame that is reordered goes after the next", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  FaultStage stage(kind, once(Action::reorder, phase, kLong));
  const CallbackNote& first = stage.call("1");
  CHECK(stage.settled([&] { return stage.answers().empty(); }));
  stage.call("2");
  REQUIRE(stage.until([&] { return stage.answers().size() == 2; }));
  CHECK(stage.answers() == Texts{"re 2", "re 1"});
  CHECK(stage.until([&] { return first.succeeded(); }));
}

TEST_CASE("a frame that is reordered waits only so long for a next one", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  FaultStage stage(kind, once(Action::reorder, phase, kShort));
  stage.call("1");
  REQUIRE(stage.until([&] { return stage.answers() == Texts{"re 1"}; }));
}

TEST_CASE("one byte of a corrupt frame is another", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  Rule rule = ruleOf(Action::corrupt, phase);
  rule.byte = FrameHeader::kSize; // of the text
  FaultStage stage(kind, planOf({rule}));
  stage.call("1");
  REQUIRE(stage.until([&] { return stage.answers().size() == 1; }));
  const std::string corrupt1 = std::string(1, static_cast<char>('1' ^ 0xff));
  const std::string corruptR = std::string(1, static_cast<char>('r' ^ 0xff));
  CHECK(stage.served() == (phase == Phase::response ? Texts{"1"} : Texts{corrupt1}));
  CHECK(
      stage.answers() ==
      (phase == Phase::response ? Texts{corruptR + "e 1"} : Texts{"re " + corrupt1}));
}

TEST_CASE("pause and kill hit the caller at the request, else the callee", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  Plan plan = once(Action::pause, phase, 1.5);
  plan.rules.push_back(ruleOf(Action::kill, phase));
  FaultStage stage(kind, plan);
  stage.call("1");
  stage.call("2");
  REQUIRE(stage.until([&] { return stage.answers() == Texts{"re 1", "re 2"}; }));
  const FaultyWorker& hit = phase == Phase::request ? stage.a : stage.decidingCallee();
  CHECK(hit.process->deeds() == Texts{"pause 1.5", "kill"});
  CHECK((&hit == &stage.a ? stage.b : stage.a).process->deeds().empty());
}

TEST_CASE("a link that breaks at a request takes that along", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::close, Phase::request));
  const CallbackNote& note = stage.call("1");
  REQUIRE(stage.until([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::linkBroken);
  CHECK_THAT(note.error().message(), Catch::Contains("on purpose, by rule 'close'"));
  const CallbackNote& next = stage.call("2");
  if (stage.isSelf()) { // there will be no other link
    REQUIRE(stage.until([&] { return stage.answers() == Texts{"re 2"}; }));
    return;
  }
  REQUIRE(stage.until([&] { return stage.endAtCaller() && stage.endAtCallee() && next.called(); }));
  CHECK_THAT(stage.endAtCaller().message(), Catch::Contains("on purpose, by rule 'close'"));
  CHECK(next.error());
  CHECK(stage.served().empty());
}

TEST_CASE("a link that breaks in flight still hands the request on", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::close, Phase::inFlight), false);
  const CallbackNote& note = stage.call("1");
  REQUIRE(stage.until([&] { return stage.served() == Texts{"1"}; }));
  CHECK(stage.until([&] { return note.called(); }));
  if (stage.isSelf()) {
    REQUIRE(stage.until([&] { return stage.answers().size() == 1; }));
    CHECK_THAT(
        stage.answers()[0],
        Catch::StartsWith("! RPCErr:2:worker 'a' lost the connection to itself"));
    return;
  }
  REQUIRE(stage.until([&] { return stage.endAtCaller() && stage.endAtCallee(); }));
  CHECK_THAT(stage.endAtCallee().message(), Catch::Contains("on purpose, by rule 'close'"));
  const CallbackNote& late = stage.answer(1, "late");
  REQUIRE(stage.until([&] { return late.called(); }));
  CHECK(late.error());
}

TEST_CASE("no answer overtakes the end of a link that breaks in flight", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::close, Phase::inFlight));
  stage.call("1");
  REQUIRE(stage.until([&] { return stage.served() == Texts{"1"}; }));
  if (stage.isSelf()) {
    REQUIRE(stage.until([&] { return !stage.answers().empty(); }));
    CHECK_THAT(
        stage.answers()[0],
        Catch::StartsWith("! RPCErr:2:worker 'a' lost the connection to itself"));
    return;
  }
  REQUIRE(stage.until([&] { return stage.endAtCaller() && stage.endAtCallee(); }));
  CHECK(stage.answers().empty());
}

TEST_CASE("a link that breaks at a response takes that along", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::close, Phase::response), false);
  stage.call("1");
  stage.call("2");
  REQUIRE(stage.until([&] { return stage.served().size() == 2; }));
  const CallbackNote& note = stage.answer(1, "re 1");
  REQUIRE(stage.until([&] { return note.called(); }));
  CHECK_THAT(note.error().message(), Catch::Contains("on purpose, by rule 'close'"));
  if (stage.isSelf()) { // all calls fail, as at the loss of a peer
    REQUIRE(stage.until([&] { return stage.answers().size() == 2; }));
    CHECK_THAT(
        stage.answers()[0],
        Catch::StartsWith("! RPCErr:2:worker 'a' lost the connection to itself"));
    CHECK_THAT(
        stage.answers()[1],
        Catch::StartsWith("! RPCErr:2:worker 'a' lost the connection to itself"));
    return;
  }
  REQUIRE(stage.until([&] { return stage.endAtCaller() && stage.endAtCallee(); }));
  CHECK(stage.answers().empty());
}

TEST_CASE("a response is known by the type of its request", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  Rule rule = ruleOf(Action::drop, Phase::response);
  rule.messages = {0x104};
  FaultStage stage(kind, planOf({rule}));
  stage.call("1", 0x102);
  stage.call("2", 0x104);
  stage.call("3", 0x102);
  REQUIRE(stage.until([&] { return stage.answers() == Texts{"re 1", "re 3"}; }));
  CHECK(stage.served() == Texts{"1", "2", "3"});
}

TEST_CASE("the type of a request is known even if the plan changes under it", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, planOf({}), false);
  stage.call("1", 0x104);
  stage.call("2", 0x102);
  REQUIRE(stage.until([&] { return stage.served().size() == 2; }));
  Rule rule = ruleOf(Action::drop, Phase::response);
  rule.messages = {0x104};
  stage.setPlan(planOf({}));
  stage.setPlan(planOf({rule}));
  stage.answer(1, "re 1");
  stage.answer(2, "re 2");
  REQUIRE(stage.until([&] { return stage.answers() == Texts{"re 2"}; }));
  CHECK(stage.logged() == Texts{"drop response 1"});
}

TEST_CASE("retries of one request count for themselves", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = anyPhaseOfCalls();
  CAPTURE(nameOf(kind), nameOf(phase));
  Rule rule = ruleOf(Action::drop, phase);
  rule.eachMessage = true;
  rule.nth = {1, 2};
  FaultStage stage(kind, planOf({rule}));
  for (const char* text : {"x", "x", "y", "x", "y", "y"}) {
    stage.call(text);
  }
  REQUIRE(stage.until([&] { return stage.answers() == Texts{"re x", "re y"}; }));
  CHECK(stage.logged().size() == 4);
}

TEST_CASE("what is held when the link closes is called back once", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Action action = GENERATE(Action::delay, Action::reorder);
  CAPTURE(nameOf(kind), nameOf(action));
  FaultStage stage(kind, once(action, Phase::request, kLong));
  const CallbackNote& note = stage.call("1");
  CHECK(stage.settled([&] { return !note.called(); }));
  stage.caller->close();
  CHECK(note.error().code() == ErrorCode::linkBroken);
  CHECK(stage.until([&] { return bool(stage.endAtCaller()); }));
}

TEST_CASE("what is held when the timer stops is called back once", "[faulty_link]") {
  const StageKind kind = anyKind();
  const Phase phase = GENERATE(Phase::request, Phase::response);
  CAPTURE(nameOf(kind), nameOf(phase));
  Rule rule = ruleOf(Action::delay, phase);
  rule.seconds.a = kLong;
  FaultStage stage(kind, planOf({rule}));
  stage.call("1");
  REQUIRE(stage.untilLogged({loggedOnce(Action::delay, phase)}));
  stage.world.timer.stop();
  CHECK(stage.until([&] { return stage.world.ledger.allCalled(); }));
  stage.call("2"); // held from now on fails at once
  CHECK(stage.until([&] { return stage.world.ledger.allCalled(); }));
}

TEST_CASE("a close fails the receive that is pending, and those to come", "[faulty_link]") {
  const StageKind kind = anyKind();
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, planOf({}));
  stage.caller->close();
  CHECK(stage.until([&] { return stage.endAtCaller() && stage.endAtCallee(); }));
  CallbackNote& note = stage.world.ledger.note("a receive after the end");
  stage.caller->receive([&](const Error& error, const IncomingFrame&) { note.add(error); });
  CHECK(note.error());
  const CallbackNote& late = stage.call("1");
  REQUIRE(stage.until([&] { return late.called(); }));
  CHECK(late.error());
}

TEST_CASE("a link that is dropped calls back what it holds", "[faulty_link]") {
  CallbackLedger ledger;
  Timer timer;
  Rule rule = ruleOf(Action::delay, Phase::request);
  rule.seconds.a = kLong;
  const FaultyWorker worker("a", planOf({rule}));
  auto link = FaultyLink::wrap(std::make_shared<LoopbackLink>(), worker.injector, timer, "a");
  const std::weak_ptr<Link> watched = link;
  link->send(callFrame(FrameKind::request, kCall, 1, "1"), ledger.expect("send"));
  CallbackNote& note = ledger.note("receive");
  link->receive([&](const Error& error, const IncomingFrame&) { note.add(error); });
  link.reset();
  CHECK(watched.expired());
  CHECK(ledger.allCalled());
}

TEST_CASE("many frames that arrive at once do not nest", "[faulty_link]") {
  const StageKind kind = GENERATE(StageKind::pumped, StageKind::self);
  CAPTURE(nameOf(kind));
  FaultStage stage(kind, once(Action::delay, Phase::request, 0), false);
  constexpr int kFrames = 20000; // a call within a call for each would exhaust the stack
  for (int i = 0; i < kFrames; ++i) {
    stage.caller->send(callFrame(FrameKind::request, kCall, 1, "x"), [](const Error&) {});
  }
  CHECK(stage.until([&] { return stage.served().size() == kFrames; }));
}

// ---- dials --------------------------------------------------------------------------------------

TEST_CASE("a refused dial fails as if nobody listened, and reaches nobody", "[faulty_link]") {
  World world;
  const FaultyWorker worker("w0", once(Action::refuse, Phase::connect));
  FaultyContext context(
      std::make_unique<BorrowedContext>(world.network.context("memory://w0")), worker.injector,
      world.timer);
  const auto refused = context.dial(recordOf(1));
  CallbackNote& sent = world.ledger.note("hello");
  CallbackNote& received = world.ledger.note("welcome");
  refused->send(Hello().encode(FrameKind::hello), CallbackLedger::expect(sent));
  refused->receive([&](const Error& error, const IncomingFrame&) { received.add(error); });
  CHECK_THAT(sent.error().message(), Catch::Contains("connection refused (injected"));
  CHECK(received.error().code() == ErrorCode::linkBroken);
  refused->close();
  CHECK(world.network.dials() == 0);
  const auto log = worker.log->entries();
  REQUIRE(log.size() == 1);
  CHECK(log[0].from == "w0");
  CHECK(log[0].to == "w1");
  context.dial(recordOf(1))->close();
  CHECK(world.network.dials() == 1);
  context.join();
}

// ---- frames -------------------------------------------------------------------------------------

TEST_CASE("corruption copies what is the user's", "[faulty_link]") {
  const std::string payload = "payload";
  const std::string tensor = "tensor";
  const auto owner = std::make_shared<int>(0);
  const size_t head = 4;
  for (size_t byte = 0; byte < 2 * (head + payload.size() + tensor.size()); ++byte) {
    CAPTURE(byte);
    OutgoingFrame frame;
    frame.head = {'h', 'e', 'a', 'd'};
    frame.payloads = {{nullptr, 0}, {payload.data(), payload.size()}};
    frame.tensors = {{tensor.data(), tensor.size()}, {nullptr, 0}};
    frame.owner = owner;
    const IncomingFrame before = loopBack(frame);
    corrupt(frame, byte);
    CHECK(payload == "payload");
    CHECK(tensor == "tensor");
    const IncomingFrame after = loopBack(frame);
    IncomingFrame likewise = copyOf(before);
    corrupt(likewise, byte);
    const auto bytesOf = [](const IncomingFrame& f) {
      std::string all(f.head.begin(), f.head.end());
      for (const auto& piece : f.payloads) {
        all.append(piece.begin(), piece.end());
      }
      for (const Blob& blob : f.tensors) {
        all.append(static_cast<const char*>(blob.data.get()), blob.length);
      }
      return all;
    };
    const std::string was = bytesOf(before);
    const std::string is = bytesOf(after);
    CHECK(is == bytesOf(likewise));
    REQUIRE(is.size() == was.size());
    for (size_t i = 0; i < is.size(); ++i) {
      CHECK((is[i] != was[i]) == (i == byte % was.size()));
    }
  }
  CHECK(owner.use_count() == 1);
}

TEST_CASE("the content of a request is its body, wherever that is", "[faulty_link]") {
  const OutgoingFrame inHead = callFrame(FrameKind::request, kCall, 1, "text");
  const OutgoingFrame again = callFrame(FrameKind::request, kCall, 2, "text");
  CHECK(contentOf(inHead) == contentOf(again));
  CHECK(contentOf(inHead) == contentOf(loopBack(again)));
  CHECK(contentOf(inHead) != contentOf(callFrame(FrameKind::request, kCall, 1, "test")));
  const std::string body = "text";
  OutgoingFrame apart;
  ByteWriter out(apart.head);
  FrameHeader{.kind = FrameKind::request, .bodyLength = body.size()}.write(out);
  apart.payloads = {{body.data(), body.size()}};
  CHECK(contentOf(apart) == contentOf(inHead));
  CHECK(contentOf(loopBack(apart)) == contentOf(inHead));
}
