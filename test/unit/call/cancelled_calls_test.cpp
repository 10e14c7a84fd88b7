#include "backend/call/cancelled_calls.h"

#include <catch2/catch.hpp>

using namespace torchwire;

TEST_CASE("a call is cancelled until it has ended", "[cancelled_calls]") {
  CancelledCalls calls;
  CHECK_FALSE(calls.contains(1, 7));
  CHECK(calls.add(1, 7).empty());
  CHECK(calls.contains(1, 7));
  CHECK_FALSE(calls.contains(2, 7)); // another caller's
  CHECK_FALSE(calls.contains(1, 8));
  CHECK(calls.ended(1, 8, calls.now()).empty());
  CHECK(calls.contains(1, 7));
  CHECK(calls.ended(1, 7, calls.now()).empty());
  CHECK_FALSE(calls.contains(1, 7));
}

TEST_CASE("a call that is cancelled twice ends once", "[cancelled_calls]") {
  CancelledCalls calls;
  CHECK(calls.add(1, 7).empty());
  CHECK(calls.add(1, 7).empty());
  CHECK(calls.ended(1, 7, calls.now()).empty());
  CHECK_FALSE(calls.contains(1, 7));
}

TEST_CASE("the latest cancelled calls are remembered", "[cancelled_calls]") {
  CancelledCalls calls(3);
  for (uint64_t id = 1; id <= 5; ++id) {
    CHECK(calls.add(1, id).empty());
  }
  CHECK_FALSE(calls.contains(1, 1));
  CHECK_FALSE(calls.contains(1, 2));
  CHECK(calls.contains(1, 3));
  CHECK(calls.contains(1, 5));
}

TEST_CASE("cancelled calls of a caller that is gone are forgotten", "[cancelled_calls]") {
  CancelledCalls calls;
  CHECK(calls.add(1, 7).empty());
  CHECK(calls.add(2, 7).empty());
  CHECK(calls.add(3, 7).empty());
  CHECK(calls.forget(2).empty());
  CHECK(calls.contains(1, 7));
  CHECK_FALSE(calls.contains(2, 7));
  CHECK(calls.contains(3, 7));
}

// ---- callbacks ----

namespace {

void run(CancelledCalls::Tasks tasks) {
  for (Task& task : tasks) {
    task();
  }
}

Task counting(int& count) {
  return [&count] { ++count; };
}

} // namespace

TEST_CASE("callbacks of a call are for who hears of its cancellation", "[cancelled_calls]") {
  CancelledCalls calls;
  int count = 0;
  const auto cancellation = calls.watch(1, 7, calls.now());
  CHECK(calls.watch(1, 7, calls.now()) == cancellation);
  for (int i = 0; i < 2; ++i) {
    Task task = counting(count);
    CHECK(cancellation->add(task));
  }
  CHECK(calls.add(1, 8).empty());
  CHECK_FALSE(cancellation->isRequested());
  run(calls.add(1, 7));
  CHECK(count == 2);
  CHECK(cancellation->isRequested());
  CHECK(calls.add(1, 7).empty());
  Task late = counting(count);
  REQUIRE_FALSE(cancellation->add(late));
  late(); // it has stayed
  CHECK(count == 3);
}

TEST_CASE("who watches a call that is cancelled already hears of it", "[cancelled_calls]") {
  CancelledCalls calls;
  CHECK(calls.add(1, 7).empty());
  CHECK(calls.watch(1, 7, calls.now())->isRequested());
}

TEST_CASE("callbacks of a call that has been answered do not run", "[cancelled_calls]") {
  CancelledCalls calls;
  int count = 0;
  const auto cancellation = calls.watch(1, 7, calls.now());
  Task task = counting(count);
  CHECK(cancellation->add(task));
  CHECK(calls.ended(1, 7, calls.now()).size() == 1);
  CHECK(calls.add(1, 7).empty());
  CHECK_FALSE(cancellation->isRequested());
  Task late = counting(count);
  CHECK(cancellation->add(late)); // not to be run
  CHECK(calls.watch(1, 7, calls.now()) != cancellation);
}

TEST_CASE("nobody waits for the calls of a caller that is gone", "[cancelled_calls]") {
  CancelledCalls calls;
  int count = 0;
  const auto own = calls.watch(1, 7, calls.now());
  const auto others = calls.watch(2, 7, calls.now());
  for (const auto& cancellation : {own, others}) {
    Task task = counting(count);
    CHECK(cancellation->add(task));
  }
  run(calls.forget(1));
  CHECK(count == 1);
  CHECK(own->isRequested());
  CHECK_FALSE(others->isRequested());
}

TEST_CASE("calls that came before their caller was lost stay cancelled", "[cancelled_calls]") {
  CancelledCalls calls;
  const CancelledCalls::Moment before = calls.now();
  CHECK(calls.forget(1).empty());
  CHECK(calls.watch(1, 7, before)->isRequested()); // one that has waited for a thread until now
  CHECK_FALSE(calls.watch(2, 7, before)->isRequested());
  // Who comes in the caller's place begins with the same numbers.
  const auto successors = calls.watch(1, 7, calls.now());
  CHECK_FALSE(successors->isRequested());
  CHECK(calls.ended(1, 7, before).empty());
  CHECK(calls.watch(1, 7, calls.now()) == successors);
  CHECK(calls.add(1, 7).empty());
  CHECK(successors->isRequested());
}

TEST_CASE("at a shutdown callbacks of all calls are given back", "[cancelled_calls]") {
  CancelledCalls calls;
  int count = 0;
  for (const WorkerId caller : {1, 2}) {
    Task task = counting(count);
    CHECK(calls.watch(caller, 7, calls.now())->add(task));
  }
  CHECK(calls.endAll().size() == 2);
  CHECK(calls.forget(1).empty());
  CHECK(count == 0);
}

TEST_CASE("a cancellation that comes after the answer changes nothing", "[cancelled_calls]") {
  CancelledCalls calls;
  const auto cancellation = calls.watch(1, 7, calls.now());
  CHECK(calls.ended(1, 7, calls.now()).empty());
  CHECK(calls.add(1, 7).empty());
  CHECK_FALSE(cancellation->isRequested());
}
