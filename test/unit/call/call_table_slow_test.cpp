// What CallTable knows of calls that take long, and what it notes of those that end.
#include "backend/call/call_table.h"

#include <catch2/catch.hpp>
#include <vector>

#include "test/unit/support/callback_ledger.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

// A timer with a clock of the test's.
class ManualTimer : public Timer {
 public:
  Clock::time_point now() const override {
    return now_;
  }
  void at(Clock::time_point when, Task task) override {
    tasks_.emplace(when, std::move(task));
  }
  void advance(milliseconds by) {
    const auto until = now_ + by;
    while (!tasks_.empty() && tasks_.begin()->first <= until) {
      auto node = tasks_.extract(tasks_.begin());
      now_ = std::max(now_, node.key());
      node.mapped()();
    }
    now_ = until;
  }
  size_t waiting() const {
    return tasks_.size();
  }

 private:
  Clock::time_point now_ = Clock::now();
  std::multimap<Clock::time_point, Task> tasks_;
};

struct Slow {
  ManualTimer timer;
  FunctionTable functions;
  FunctionMetrics& function = functions.find({"python", "f"});
  CallTable calls{timer};
  std::vector<CallTable::Pending> seen;
  std::vector<Error> ends;

  explicit Slow(milliseconds after) {
    calls.watchSlow(after, [this](std::vector<CallTable::Pending> slow) {
      for (auto& call : slow) {
        seen.push_back(std::move(call));
      }
    });
  }
  uint64_t open(milliseconds timeout) {
    return calls.open(
        1, {.timeout = timeout, .function = &function},
        [this](const Outcome& outcome) { ends.push_back(outcome.error); });
  }
};

ReceivedFrame answerAfter(std::chrono::nanoseconds served) {
  ReceivedFrame frame;
  frame.header.kind = FrameKind::response;
  frame.header.served = served;
  return frame;
}

} // namespace

TEST_CASE("a call is looked after once when it is slow", "[call_table_slow]") {
  Slow slow(milliseconds(30000));
  const uint64_t id = slow.open(milliseconds(0));
  slow.timer.advance(milliseconds(29999));
  CHECK(slow.seen.empty());
  slow.timer.advance(milliseconds(1));
  REQUIRE(slow.seen.size() == 1);
  CHECK(slow.seen[0].key.id == id);
  CHECK(slow.seen[0].function == &slow.function);
  CHECK(slow.seen[0].age == milliseconds(30000));
  slow.timer.advance(milliseconds(1000000));
  CHECK(slow.seen.size() == 1);
  slow.calls.failAll(Error(ErrorCode::shutDown, ""));
}

TEST_CASE("a call is looked after when three quarters of its time are over", "[call_table_slow]") {
  Slow slow(milliseconds(30000));
  slow.open(milliseconds(4000));
  slow.timer.advance(milliseconds(3000));
  REQUIRE(slow.seen.size() == 1);
  slow.calls.noteWhereabouts(slow.seen[0].key.id, "it is queued");
  slow.timer.advance(milliseconds(1000));
  REQUIRE(slow.ends.size() == 1);
  CHECK(slow.ends[0].message().find("; it is queued") != std::string::npos);
  CHECK(slow.seen.size() == 1);
}

TEST_CASE("a call with a long time-out is looked after twice", "[call_table_slow]") {
  Slow slow(milliseconds(30000));
  slow.open(milliseconds(100000));
  slow.timer.advance(milliseconds(99000));
  REQUIRE(slow.seen.size() == 2);
  CHECK(slow.seen[1].age == milliseconds(75000));
  CHECK(slow.seen[0].isNewlySlow);
  CHECK(!slow.seen[1].isNewlySlow); // it has been said
  slow.timer.advance(milliseconds(1000));
  CHECK(slow.ends.size() == 1);
}

TEST_CASE("a call that becomes slow near its end is newly slow then", "[call_table_slow]") {
  Slow slow(milliseconds(30000));
  slow.open(milliseconds(36000));
  slow.timer.advance(milliseconds(35000));
  REQUIRE(slow.seen.size() == 2);
  CHECK(slow.seen[0].age == milliseconds(27000));
  CHECK(!slow.seen[0].isNewlySlow);
  CHECK(slow.seen[1].age == milliseconds(30000));
  CHECK(slow.seen[1].isNewlySlow);
  slow.calls.failAll(Error(ErrorCode::shutDown, ""));
}

TEST_CASE("nobody looks after short time-outs, nor where it is switched off", "[call_table_slow]") {
  Slow slow(milliseconds(0));
  slow.open(milliseconds(999));
  slow.open(milliseconds(0));
  slow.timer.advance(milliseconds(1000000));
  CHECK(slow.seen.empty());
  CHECK(slow.timer.waiting() == 0);
  slow.calls.failAll(Error(ErrorCode::shutDown, ""));
}

TEST_CASE("calls that end in time leave one look behind", "[call_table_slow]") {
  Slow slow(milliseconds(30000));
  for (int i = 0; i < 1000; ++i) {
    const uint64_t id = slow.open(milliseconds(0));
    CHECK(slow.calls.answer(id, 1, {}));
  }
  CHECK(slow.timer.waiting() == 1);
  slow.timer.advance(milliseconds(60000));
  CHECK(slow.seen.empty());
  CHECK(slow.timer.waiting() == 0); // an idle worker does not wake up
}

TEST_CASE("a call that comes with less time is looked after in time", "[call_table_slow]") {
  Slow slow(milliseconds(30000));
  slow.open(milliseconds(0));
  slow.open(milliseconds(2000));
  slow.timer.advance(milliseconds(1500));
  CHECK(slow.seen.size() == 1);
  slow.timer.advance(milliseconds(28500));
  CHECK(slow.seen.size() == 2);
  slow.calls.failAll(Error(ErrorCode::shutDown, ""));
}

TEST_CASE("what a call took is noted with its function", "[call_table_slow]") {
  Slow slow(milliseconds(0));
  const uint64_t answered = slow.open(milliseconds(0));
  slow.timer.advance(milliseconds(100));
  CHECK(slow.calls.answer(answered, 1, answerAfter(milliseconds(60))));
  slow.open(milliseconds(10));
  slow.timer.advance(milliseconds(10));
  CHECK(slow.calls.withdraw(slow.open(milliseconds(0)), ErrorCode::unreachable));
  const auto latency = slow.function.latency.snapshot();
  CHECK(latency.count() == 3);
  CHECK(latency.sum == milliseconds(110));
  CHECK(slow.function.wire.snapshot().sum == milliseconds(40));
  CHECK(slow.function.failures(ErrorCode::timeout) == 1);
  CHECK(slow.function.failures(ErrorCode::unreachable) == 1);
}

TEST_CASE("calls under way are listed, the oldest first", "[call_table_slow]") {
  Slow slow(milliseconds(0));
  const uint64_t first = slow.open(milliseconds(0));
  slow.timer.advance(milliseconds(5));
  const uint64_t second = slow.open(milliseconds(7000));
  slow.calls.open(1, {milliseconds(0)}, [](const Outcome&) {}); // the agent's own
  const auto pending = slow.calls.pending();
  REQUIRE(pending.size() == 2);
  CHECK(pending[0].key.id == first);
  CHECK(pending[0].age == milliseconds(5));
  CHECK(pending[1].key.id == second);
  CHECK(pending[1].timeout == milliseconds(7000));
  slow.calls.failAll(Error(ErrorCode::shutDown, ""));
}

TEST_CASE("a call is traced while that is on", "[call_table_slow]") {
  Slow slow(milliseconds(0));
  TraceLog trace;
  slow.calls.traceTo(&trace);
  trace.start(10);
  const uint64_t id = slow.open(milliseconds(0));
  slow.timer.advance(milliseconds(3));
  CHECK(slow.calls.answer(id, 1, answerAfter(milliseconds(1))));
  const auto taken = trace.stop();
  REQUIRE(taken.events.size() == 1);
  CHECK(taken.events[0].callId == id);
  CHECK(taken.events[0].served == milliseconds(1));
  CHECK(taken.events[0].ended - taken.events[0].middle == milliseconds(3));
}
