#include "backend/call/metrics.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kLong{3600000};

} // namespace

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
  CHECK(calls.waitForNone(kLong));
  calls.start();
  calls.finish();
  CHECK(calls.waitForNone(kLong));
  CHECK(calls.waitForNone(milliseconds(0)));
}

TEST_CASE("waiting for no active call ends with the patience", "[metrics]") {
  ActiveCalls calls;
  calls.start();
  CHECK_FALSE(calls.waitForNone(milliseconds(0)));
  CHECK_FALSE(calls.waitForNone(milliseconds(2)));
  calls.finish();
  CHECK(calls.waitForNone(milliseconds(2)));
}

TEST_CASE("waiting for no active call lasts until the last one finishes", "[metrics]") {
  for (int round = 0; round < 50; ++round) {
    ActiveCalls calls;
    std::atomic<bool> waits{false};
    std::atomic<bool> last{false};
    bool none = false;
    bool tooEarly = false;
    calls.start();
    calls.start();
    std::thread waiter([&] {
      waits = true;
      none = calls.waitForNone(kLong);
      tooEarly = !last;
    });
    while (!waits) {
      std::this_thread::yield();
    }
    calls.finish();
    last = true;
    calls.finish();
    waiter.join();
    CHECK(none);
    CHECK_FALSE(tooEarly);
  }
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
  CHECK(calls.waitForNone(kLong));
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
