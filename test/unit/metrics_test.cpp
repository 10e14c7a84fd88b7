#include "backend/metrics.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

using namespace torchwire;

TEST_CASE("calls are active between start and finish", "[metrics]") {
  ActiveCalls calls;
  calls.start();
  calls.start();
  calls.finish();
  CHECK(calls.active() == 1);
  CHECK(calls.count().started == 2);
  CHECK(calls.count().finished == 1);
  calls.finish();
  CHECK(calls.active() == 0);
}

TEST_CASE("waiting for no active call returns at once where there is none", "[metrics]") {
  ActiveCalls calls;
  calls.waitForNone();
  calls.start();
  calls.finish();
  calls.waitForNone();
  CHECK(calls.active() == 0);
}

TEST_CASE("waiting for no active call lasts until the last one finishes", "[metrics]") {
  ActiveCalls calls;
  std::atomic<bool> last{false};
  calls.start();
  calls.start();
  bool tooEarly = false;
  std::thread waiter([&] {
    calls.waitForNone();
    tooEarly = !last;
  });
  calls.finish();
  last = true;
  calls.finish();
  waiter.join();
  CHECK_FALSE(tooEarly);
}

TEST_CASE("calls are counted from many threads", "[metrics]") {
  ActiveCalls calls;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&calls] {
      for (int i = 0; i < 1000; ++i) {
        calls.start();
        calls.finish();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  calls.waitForNone();
  CHECK(calls.count().started == 4000);
  CHECK(calls.count().finished == 4000);
}

TEST_CASE("the serving side's counters start at zero", "[metrics]") {
  const ServerMetrics metrics;
  CHECK(metrics.active == 0);
  CHECK(metrics.activeAsync == 0);
  CHECK(metrics.gilWaits == 0);
  CHECK(metrics.gilWaitMicroseconds == 0);
}
