// Which messages the rules of a plan apply to.
#include "backend/faults/injector.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "test/unit/support/fault_stage.h"

using namespace torchwire::faults;
using Numbers = std::vector<uint64_t>;

namespace {

FaultPoint point(
    Phase phase = Phase::request, uint32_t message = kCall, const std::string& from = "a",
    const std::string& to = "b") {
  FaultPoint at;
  at.phase = phase;
  at.from = from;
  at.to = to;
  at.message = message;
  at.bytes = 100;
  return at;
}

// The occurrences that a fault is injected into, out of so many in one stream.
Numbers injected(const Plan& plan, int messages, const FaultPoint& like = point()) {
  FaultyWorker worker("a", plan);
  Numbers numbers;
  for (int i = 0; i < messages; ++i) {
    FaultPoint at = like;
    if (worker.injector->decide(at)) {
      numbers.push_back(at.occurrence);
    }
  }
  return numbers;
}

Rule sometimes(double probability) {
  Rule rule = ruleOf(Action::drop, Phase::request);
  rule.probability = probability;
  return rule;
}

} // namespace

TEST_CASE("without rules nothing is decided, counted or logged", "[injector]") {
  FaultyWorker worker("a", planOf({}));
  FaultPoint at = point();
  CHECK(worker.injector->quiet());
  CHECK_FALSE(worker.injector->decide(at));
  CHECK(at.occurrence == 0);
  CHECK(worker.log->entries().empty());
}

TEST_CASE("a rule applies to what it names, and says so in the log", "[injector]") {
  Rule rule = ruleOf(Action::delay, Phase::request);
  rule.name = "slow";
  rule.seconds.a = 0.5;
  Plan plan = planOf({rule});
  plan.revision = 9;
  FaultyWorker worker("a", plan);
  FaultPoint at = point();
  at.callId = 77;
  const auto fault = worker.injector->decide(at);
  REQUIRE(fault);
  CHECK(fault->action == Action::delay);
  const auto log = worker.log->entries();
  REQUIRE(log.size() == 1);
  CHECK(log[0].time > 1.6e9);
  CHECK(log[0].worker == "a");
  CHECK(log[0].revision == 9);
  CHECK(log[0].rule == "slow");
  CHECK(log[0].from == "a");
  CHECK(log[0].to == "b");
  CHECK(log[0].message == kCall);
  CHECK(log[0].callId == 77);
  CHECK(log[0].occurrence == 1);
  CHECK(log[0].seconds == 0.5);
}

TEST_CASE("a rule matches by phase, type and workers", "[injector]") {
  Rule rule = ruleOf(Action::drop, Phase::inFlight);
  rule.messages = {kCall, 0x104};
  rule.from = {"trainer*", "eva[12]"};
  rule.to = {"ps"};
  const Plan plan = planOf({rule});
  const auto applies = [&](Phase phase, uint32_t type, const char* from, const char* to) {
    return !injected(plan, 1, point(phase, type, from, to)).empty();
  };
  CHECK(applies(Phase::inFlight, kCall, "trainer7", "ps"));
  CHECK(applies(Phase::inFlight, 0x104, "eva2", "ps"));
  CHECK_FALSE(applies(Phase::inFlight, kCall, "eva3", "ps"));
  CHECK_FALSE(applies(Phase::inFlight, 0x10b, "trainer7", "ps"));
  CHECK_FALSE(applies(Phase::request, kCall, "trainer7", "ps"));
  CHECK_FALSE(applies(Phase::inFlight, kCall, "ps", "trainer7"));
}

TEST_CASE("a rule about connections has no message type to match", "[injector]") {
  Rule rule = ruleOf(Action::refuse, Phase::connect);
  rule.messages = {kCall};
  CHECK(injected(planOf({rule}), 2, point(Phase::connect, 0)) == Numbers{1, 2});
}

TEST_CASE("a fault is injected into the named occurrences only", "[injector]") {
  Rule rule = ruleOf(Action::drop, Phase::request);
  rule.nth = {5, 2, 5};
  CHECK(injected(planOf({rule}), 10) == Numbers{2, 5});
}

TEST_CASE("occurrences are counted for each stream apart", "[injector]") {
  Rule rule = ruleOf(Action::drop, Phase::request);
  rule.nth = {2};
  FaultyWorker worker("a", planOf({rule}));
  for (const auto& like :
       {point(), point(Phase::request, 0x104), point(Phase::request, kCall, "a", "c")}) {
    FaultPoint first = like;
    FaultPoint second = like;
    CHECK_FALSE(worker.injector->decide(first));
    CHECK(worker.injector->decide(second));
  }
}

TEST_CASE("a rule applies to at most so many of a stream", "[injector]") {
  Rule rule = ruleOf(Action::drop, Phase::request);
  rule.atMost = 3;
  CHECK(injected(planOf({rule}), 10) == Numbers{1, 2, 3});
}

TEST_CASE("a rule applies to the first so many whatever the probability", "[injector]") {
  Rule rule = sometimes(0);
  rule.atLeast = 2;
  CHECK(injected(planOf({rule}), 10) == Numbers{1, 2});
  rule.nth = {3, 6, 9};
  CHECK(injected(planOf({rule}), 10) == Numbers{3, 6});
}

TEST_CASE(
    "what an earlier rule applies to does not count for a later one's guarantee", "[injector]") {
  Rule first = ruleOf(Action::drop, Phase::request);
  first.nth = {1};
  Rule second = ruleOf(Action::fail, Phase::request);
  second.probability = 0;
  second.atLeast = 2;
  FaultyWorker worker("a", planOf({first, second}));
  std::vector<std::string> rules;
  for (int i = 0; i < 5; ++i) {
    FaultPoint at = point();
    const auto fault = worker.injector->decide(at);
    rules.push_back(fault ? fault->rule : "");
  }
  CHECK(rules == std::vector<std::string>{"drop", "fail", "fail", "", ""});
}

TEST_CASE("a rule for each message counts among those with the same content", "[injector]") {
  Rule rule = ruleOf(Action::fail, Phase::request);
  rule.eachMessage = true;
  rule.nth = {1, 2};
  FaultyWorker worker("a", planOf({rule}));
  CHECK(worker.injector->readsContent());
  Numbers numbers;
  for (const uint64_t content : {10, 20, 10, 10, 20, 20, 30}) {
    FaultPoint at = point();
    at.content = content;
    if (worker.injector->decide(at)) {
      numbers.push_back(at.occurrence); // of the stream, so that a log can be replayed
    }
  }
  CHECK(numbers == Numbers{1, 2, 3, 5, 7});
}

TEST_CASE("the limits of a rule for each message are meant for each message", "[injector]") {
  Rule rule = ruleOf(Action::fail, Phase::request);
  rule.eachMessage = true;
  rule.atMost = 1;
  FaultyWorker worker("a", planOf({rule}));
  Numbers numbers;
  for (const uint64_t content : {10, 10, 20, 20}) {
    FaultPoint at = point();
    at.content = content;
    if (worker.injector->decide(at)) {
      numbers.push_back(at.occurrence);
    }
  }
  CHECK(numbers == Numbers{1, 3});
}

TEST_CASE("a probability is kept about as often as it says", "[injector]") {
  const size_t count = injected(planOf({sometimes(0.3)}), 10000).size();
  CHECK(count > 2800);
  CHECK(count < 3200);
  CHECK(injected(planOf({sometimes(1)}), 100).size() == 100);
  CHECK(injected(planOf({sometimes(0)}), 100).empty());
}

TEST_CASE("the same seed chooses the same messages, another seed others", "[injector]") {
  const Numbers once = injected(planOf({sometimes(0.3)}, 5), 200);
  CHECK(once == injected(planOf({sometimes(0.3)}, 5), 200));
  CHECK(once != injected(planOf({sometimes(0.3)}, 6), 200));
  // and other streams and rules draw other numbers
  CHECK(once != injected(planOf({sometimes(0.3)}, 5), 200, point(Phase::request, 0x104)));
  CHECK(once != injected(planOf({sometimes(0), sometimes(0.3)}, 5), 200));
}

TEST_CASE("what is injected does not depend on how threads interleave", "[injector]") {
  using Injected = std::set<std::tuple<uint32_t, std::string, uint64_t, double, uint64_t>>;
  const auto run = [](unsigned threads) {
    Rule slow = ruleOf(Action::delay, Phase::request);
    slow.probability = 0.2;
    slow.seconds = {Duration::Shape::exponential, 1, 0};
    Rule corrupting = ruleOf(Action::corrupt, Phase::request);
    corrupting.probability = 0.2;
    corrupting.atLeast = 3;
    corrupting.atMost = 50;
    FaultyWorker worker("a", planOf({slow, corrupting}, 11));
    std::vector<std::thread> running;
    for (unsigned t = 0; t < threads; ++t) {
      running.emplace_back([&worker, t, threads] {
        for (unsigned i = t; i < 600; i += threads) {
          FaultPoint at = point(Phase::request, 0x100 + i % 3);
          worker.injector->decide(at);
        }
      });
    }
    for (std::thread& thread : running) {
      thread.join();
    }
    Injected all;
    for (const Entry& entry : worker.log->entries()) {
      all.emplace(entry.message, entry.rule, entry.occurrence, entry.seconds, entry.byte);
    }
    return all;
  };
  const Injected alone = run(1);
  CHECK(alone.size() > 100);
  CHECK(alone == run(4));
  CHECK(alone == run(3));
}

TEST_CASE("a new plan counts anew", "[injector]") {
  Rule rule = ruleOf(Action::drop, Phase::request);
  rule.nth = {1};
  FaultyWorker worker("a", planOf({rule}));
  FaultPoint at = point();
  CHECK(worker.injector->decide(at));
  CHECK_FALSE(worker.injector->decide(at));
  worker.injector->setPlan(planOf({rule}));
  CHECK(worker.injector->decide(at));
  CHECK(at.occurrence == 1);
}

TEST_CASE("a plan that makes no sense leaves the former in force", "[injector]") {
  FaultyWorker worker("a", planOf({ruleOf(Action::drop, Phase::request)}));
  CHECK_THROWS_AS(
      worker.injector->setPlan(planOf({ruleOf(Action::drop, Phase::connect)})),
      std::invalid_argument);
  FaultPoint at = point();
  CHECK(worker.injector->decide(at));
}

TEST_CASE("the corrupt byte is the one named, or drawn, within the frame", "[injector]") {
  Rule rule = ruleOf(Action::corrupt, Phase::request);
  rule.byte = 205;
  FaultyWorker named("a", planOf({rule}));
  FaultPoint at = point();
  CHECK(named.injector->decide(at)->byte == 5);
  rule.byte.reset();
  FaultyWorker drawn("a", planOf({rule}));
  std::set<uint64_t> bytes;
  for (int i = 0; i < 50; ++i) {
    bytes.insert(drawn.injector->decide(at)->byte);
  }
  CHECK(bytes.size() > 20);
  CHECK(*bytes.rbegin() < 100);
}

TEST_CASE("reorder waits for a second where the plan says nothing", "[injector]") {
  FaultyWorker worker("a", planOf({ruleOf(Action::reorder, Phase::request)}));
  FaultPoint at = point();
  CHECK(worker.injector->decide(at)->seconds == 1);
}

TEST_CASE("pause and kill hit the process once they are logged", "[injector]") {
  Rule pause = ruleOf(Action::pause, Phase::request);
  pause.seconds.a = 1.5;
  pause.nth = {1};
  Rule kill = ruleOf(Action::kill, Phase::request);
  FaultyWorker worker("a", planOf({pause, kill}));
  FaultPoint at = point();
  CHECK_FALSE(worker.injector->decide(at)); // nothing is left to do
  CHECK_FALSE(worker.injector->decide(at));
  CHECK(worker.process->deeds() == std::vector<std::string>{"pause 1.5", "kill"});
  CHECK(worker.log->entries().size() == 2);
}

// ---- notes of requests --------------------------------------------------------------------------

TEST_CASE("a request's note is there for its response, once for each arrival", "[request_notes]") {
  RequestNotes notes;
  notes.add("a", 1, {kCall, 5});
  notes.add("a", 1, {kCall, 5});
  notes.add("b", 1, {0x104, 6});
  CHECK(notes.take("b", 1)->type == 0x104);
  CHECK_FALSE(notes.take("b", 1));
  CHECK(notes.take("a", 1)->content == 5);
  CHECK(notes.take("a", 1));
  CHECK_FALSE(notes.take("a", 1));
}

TEST_CASE("the oldest notes are forgotten", "[request_notes]") {
  RequestNotes notes(3);
  for (uint64_t id = 1; id <= 3; ++id) {
    notes.add("a", id, {});
  }
  notes.take("a", 1);
  notes.add("a", 4, {});
  notes.add("a", 5, {});
  CHECK_FALSE(notes.take("a", 2));
  CHECK(notes.takeAll("a") == Numbers{3, 4, 5});
  CHECK(notes.takeAll("a").empty());
}

// ---- partitions ---------------------------------------------------------------------------------

namespace {

using Clock = Partitions::Clock;
using std::chrono::milliseconds;

Rule partition(
    std::vector<std::string> one, std::vector<std::string> other, double from, double seconds) {
  Rule rule = ruleOf(Action::partition, Phase::request);
  rule.from = std::move(one);
  rule.to = std::move(other);
  rule.after = from;
  rule.seconds.a = seconds;
  return rule;
}

} // namespace

TEST_CASE("a partition lasts for its time, in both directions", "[partitions]") {
  const Plan plan = planOf({partition({"a*"}, {"b"}, 1, 2)});
  const Clock::time_point start{};
  for (const auto& [self, peer] : {std::pair("a1", "b"), std::pair("b", "a1")}) {
    const Partitions partitions(self, plan, start);
    CHECK_FALSE(partitions.between(peer, start + milliseconds(999)));
    REQUIRE(partitions.between(peer, start + milliseconds(1000)));
    CHECK(
        partitions.between(peer, start + milliseconds(1500))->until == start + milliseconds(3000));
    CHECK_FALSE(partitions.between(peer, start + milliseconds(3000)));
    CHECK_FALSE(partitions.between("c", start + milliseconds(1500)));
  }
  CHECK_FALSE(Partitions("a1", plan, start).between("a2", start + milliseconds(1500)));
}

TEST_CASE("partitions that overlap are one", "[partitions]") {
  const Partitions partitions(
      "a",
      planOf({partition({"a"}, {}, 0, 2), partition({"b"}, {}, 1, 3), partition({}, {"c"}, 4, 1)}),
      Clock::time_point());
  const auto cut = partitions.between("b", Clock::time_point());
  REQUIRE(cut);
  CHECK(cut->until == Clock::time_point(milliseconds(4000)));
}

TEST_CASE("all workers draw the same time for a partition", "[partitions]") {
  Rule rule = partition({"a"}, {"b"}, 0, 0);
  rule.seconds = {Duration::Shape::uniform, 1, 9};
  const Clock::time_point start{};
  const auto atA = Partitions("a", planOf({rule}), start).between("b", start);
  const auto atB = Partitions("b", planOf({rule}), start).between("a", start);
  REQUIRE((atA && atB));
  CHECK(atA->until == atB->until);
}

TEST_CASE("a worker is cut off from itself only by name", "[partitions]") {
  const Clock::time_point start{};
  CHECK_FALSE(Partitions("a", planOf({partition({"a"}, {}, 0, 1)}), start).between("a", start));
  CHECK_FALSE(Partitions("a", planOf({partition({"a"}, {"*"}, 0, 1)}), start).between("a", start));
  CHECK(Partitions("a", planOf({partition({"a"}, {"a", "b"}, 0, 1)}), start).between("a", start));
}

// ---- mid-tensor ---------------------------------------------------------------------------------

TEST_CASE("a fault in mid-tensor is found once, by the tensor's address", "[mid_tensor]") {
  const auto faults = std::make_shared<MidTensor>();
  char tensor[2] = {};
  int injections = 0;
  const auto armed = faults->arm(&tensor[0], [&](const MidTensor::GoOn& goOn) {
    ++injections;
    goOn();
  });
  CHECK_FALSE(faults->take(&tensor[1]));
  const auto inject = faults->take(&tensor[0]);
  REQUIRE(inject);
  bool wentOn = false;
  inject([&] { wentOn = true; });
  CHECK(injections == 1);
  CHECK(wentOn);
  CHECK_FALSE(faults->take(&tensor[0]));
}

TEST_CASE("a fault in mid-tensor is withdrawn when its send has ended", "[mid_tensor]") {
  auto faults = std::make_shared<MidTensor>();
  char tensor = 0;
  auto first = faults->arm(&tensor, [](const MidTensor::GoOn&) {});
  auto second = faults->arm(&tensor, [](const MidTensor::GoOn& goOn) { goOn(); });
  first.reset();
  const auto inject = faults->take(&tensor);
  REQUIRE(inject);
  bool wentOn = false;
  inject([&] { wentOn = true; });
  CHECK(wentOn); // the second one's
  faults.reset();
  second.reset(); // too late for anything
}
