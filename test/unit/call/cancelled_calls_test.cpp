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
  CHECK(calls.ended(1, 8).empty());
  CHECK(calls.contains(1, 7));
  CHECK(calls.ended(1, 7).empty());
  CHECK_FALSE(calls.contains(1, 7));
}

TEST_CASE("a call that is cancelled twice ends once", "[cancelled_calls]") {
  CancelledCalls calls;
  CHECK(calls.add(1, 7).empty());
  CHECK(calls.add(1, 7).empty());
  CHECK(calls.ended(1, 7).empty());
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
  const auto cancellation = calls.watch(1, 7);
  CHECK(calls.watch(1, 7) == cancellation);
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
  CHECK(calls.watch(1, 7)->isRequested());
}

TEST_CASE("callbacks of a call that has been answered do not run", "[cancelled_calls]") {
  CancelledCalls calls;
  int count = 0;
  const auto cancellation = calls.watch(1, 7);
  Task task = counting(count);
  CHECK(cancellation->add(task));
  CHECK(calls.ended(1, 7).size() == 1);
  CHECK(calls.add(1, 7).empty());
  CHECK_FALSE(cancellation->isRequested());
  Task late = counting(count);
  CHECK(cancellation->add(late));
  CHECK_FALSE(late); // taken, and dropped
  CHECK(calls.watch(1, 7) != cancellation);
}

TEST_CASE("nobody waits for the calls of a caller that is gone", "[cancelled_calls]") {
  CancelledCalls calls;
  int count = 0;
  const auto own = calls.watch(1, 7);
  const auto others = calls.watch(2, 7);
  for (const auto& cancellation : {own, others}) {
    Task task = counting(count);
    CHECK(cancellation->add(task));
  }
  run(calls.forget(1));
  CHECK(count == 1);
  CHECK(own->isRequested());
  CHECK_FALSE(others->isRequested());
  CHECK_FALSE(calls.watch(1, 7)->isRequested()); // of who comes in its place
}
