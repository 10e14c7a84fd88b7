#include "backend/call/served_calls.h"

#include <pthread.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

using namespace torchwire;
using State = ServedCalls::State;

namespace {

struct Served {
  TraceLog trace;
  FunctionTable functions;
  ServedCalls calls{trace};
  FunctionMetrics& function = functions.find({"python", "f"});

  ServedCalls::Ticket add(uint64_t id) {
    return calls.add({1, id, &function});
  }
};

} // namespace

TEST_CASE("a request is known from its arrival to its answer", "[served_calls]") {
  Served served;
  auto ticket = served.add(7);
  REQUIRE(served.calls.find(1, 7));
  CHECK(served.calls.find(1, 7)->state == State::queued);
  CHECK_FALSE(served.calls.find(2, 7));
  ticket.start();
  CHECK(served.calls.find(1, 7)->state == State::running);
  CHECK(served.calls.find(1, 7)->thread == static_cast<uint64_t>(pthread_self()));
  ticket.returned();
  CHECK(served.calls.find(1, 7)->state == State::returned);
  CHECK(served.calls.find(1, 7)->thread == 0);
  CHECK(ticket.end() > std::chrono::nanoseconds(0));
  CHECK(ticket.end() == std::chrono::nanoseconds(0)); // once
  CHECK_FALSE(served.calls.find(1, 7));
  CHECK(served.function.queue.snapshot().count() == 1);
  CHECK(served.function.run.snapshot().count() == 1);
}

TEST_CASE("a request that is dropped before it runs is not counted", "[served_calls]") {
  Served served;
  {
    const auto ticket = served.add(1);
    CHECK(served.calls.all().size() == 1);
  }
  CHECK(served.calls.all().empty());
  CHECK(served.function.queue.snapshot().count() == 0);
}

TEST_CASE("errors of requests are counted, unless they are of none", "[served_calls]") {
  Served served;
  const auto ticket = served.add(1);
  ticket.request().countError();
  ticket.request().countError();
  ServedCalls::Request().countError();
  CHECK(served.function.errors() == 2);
}

TEST_CASE("requests are listed as they came", "[served_calls]") {
  Served served;
  std::vector<ServedCalls::Ticket> tickets;
  for (uint64_t id = 0; id < 5; ++id) {
    tickets.push_back(served.add(id));
  }
  tickets.erase(tickets.begin() + 2);
  tickets.push_back(served.add(9)); // in the place of the one that has gone
  std::vector<uint64_t> ids;
  for (const auto& status : served.calls.all()) {
    ids.push_back(status.request.callId);
  }
  CHECK(ids == std::vector<uint64_t>{0, 1, 3, 4, 9});
}

TEST_CASE("requests come and go on many threads while others look", "[served_calls]") {
  Served served;
  std::atomic<bool> ended{false};
  std::thread looker([&] {
    while (!ended) {
      CHECK(served.calls.all().size() <= 4);
      served.calls.find(1, 5);
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&served] {
      for (uint64_t id = 0; id < 2000; ++id) {
        auto ticket = served.add(id);
        ticket.start();
        ticket.returned();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  ended = true;
  looker.join();
  CHECK(served.function.run.snapshot().count() == 8000);
}

TEST_CASE("a request is traced while that is on", "[served_calls]") {
  Served served;
  served.add(1).start();
  served.trace.start(10);
  served.add(2).start();
  const auto taken = served.trace.stop();
  REQUIRE(taken.events.size() == 1);
  CHECK(taken.events[0].kind == TraceLog::Kind::callee);
  CHECK(taken.events[0].callId == 2);
  CHECK(taken.events[0].begun <= taken.events[0].middle);
  CHECK(taken.events[0].middle <= taken.events[0].ended);
  CHECK(taken.lost == 0);
}
