#include "backend/call/cancelled_calls.h"

#include <catch2/catch.hpp>

using namespace torchwire;

TEST_CASE("a call is cancelled until it has ended", "[cancelled_calls]") {
  CancelledCalls calls;
  CHECK_FALSE(calls.contains(1, 7));
  calls.add(1, 7);
  CHECK(calls.contains(1, 7));
  CHECK_FALSE(calls.contains(2, 7)); // another caller's
  CHECK_FALSE(calls.contains(1, 8));
  calls.ended(1, 8);
  CHECK(calls.contains(1, 7));
  calls.ended(1, 7);
  CHECK_FALSE(calls.contains(1, 7));
}

TEST_CASE("a call that is cancelled twice ends once", "[cancelled_calls]") {
  CancelledCalls calls;
  calls.add(1, 7);
  calls.add(1, 7);
  calls.ended(1, 7);
  CHECK_FALSE(calls.contains(1, 7));
}

TEST_CASE("the latest cancelled calls are remembered", "[cancelled_calls]") {
  CancelledCalls calls(3);
  for (uint64_t id = 1; id <= 5; ++id) {
    calls.add(1, id);
  }
  CHECK_FALSE(calls.contains(1, 1));
  CHECK_FALSE(calls.contains(1, 2));
  CHECK(calls.contains(1, 3));
  CHECK(calls.contains(1, 5));
}

TEST_CASE("cancelled calls of a caller that is gone are forgotten", "[cancelled_calls]") {
  CancelledCalls calls;
  calls.add(1, 7);
  calls.add(2, 7);
  calls.add(3, 7);
  calls.forget(2);
  CHECK(calls.contains(1, 7));
  CHECK_FALSE(calls.contains(2, 7));
  CHECK(calls.contains(3, 7));
}
