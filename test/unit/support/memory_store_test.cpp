#include "test/unit/support/memory_store.h"

#include <catch2/catch.hpp>

#include "test/unit/support/scheduled_store.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;
using Value = KeyValueStore::Value;

TEST_CASE("a memory store compares and sets as PyTorch's stores do", "[memory_store]") {
  MemoryStore store;
  SECTION("a missing key is written where nothing is expected") {
    CHECK(store.compareSet("key", {}, {1}) == Value{1});
    CHECK(store.get("key") == Value{1});
  }
  SECTION("a missing key is not written where something is expected, which comes back") {
    CHECK(store.compareSet("key", {9}, {1}) == Value{9});
    CHECK_FALSE(store.check("key"));
  }
  SECTION("what is expected is replaced") {
    store.set("key", {1});
    CHECK(store.compareSet("key", {1}, {2}) == Value{2});
    CHECK(store.get("key") == Value{2});
  }
  SECTION("what is not expected stays, and comes back") {
    store.set("key", {1});
    CHECK(store.compareSet("key", {}, {2}) == Value{1});
    CHECK(store.compareSet("key", {3}, {2}) == Value{1});
    CHECK(store.get("key") == Value{1});
  }
}

TEST_CASE("a memory store adds", "[memory_store]") {
  MemoryStore store;
  CHECK(store.add("counter", 5) == 5);
  CHECK(store.add("counter", -7) == -2);
  CHECK(store.add("counter", 0) == -2);
  CHECK(store.check("counter"));
}

TEST_CASE("a memory store counts operations and bytes", "[memory_store]") {
  MemoryStore store;
  store.compareSet("key", {}, {1, 2});
  const StoreTraffic before = store.traffic();
  store.get("key");
  store.set("key", {1});
  store.add("counter", 1);
  store.check("key");
  store.check("key");
  CHECK(before.describe() == "1 operations (1 compareSet, 0 get, 0 set, 0 add, 0 check), 7 bytes");
  CHECK(
      store.traffic().since(before).describe() ==
      "5 operations (0 compareSet, 1 get, 1 set, 1 add, 2 check), 40 bytes");
}

TEST_CASE("a scheduled store waits in get until the key is there", "[memory_store]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    Scheduler scheduler(seed);
    MemoryStore memory;
    Value got;
    scheduler.add("reader", [&] { got = ScheduledStore(memory, scheduler, {}).get("key"); });
    scheduler.add("writer", [&] { ScheduledStore(memory, scheduler, {}).set("key", {7}); });
    CHECK(scheduler.run().empty());
    CHECK(got == Value{7});
  }
}

TEST_CASE("a get that nobody answers is found", "[memory_store]") {
  Scheduler scheduler(1);
  MemoryStore memory;
  scheduler.add("reader", [&] { ScheduledStore(memory, scheduler, {}).get("key"); });
  CHECK(
      scheduler.run() ==
      std::vector<std::string>{"reader waits for get of key and nobody is left to wake it"});
}

TEST_CASE("a scheduled store breaks at the operation that was set", "[memory_store]") {
  Scheduler scheduler(1);
  MemoryStore memory;
  ScheduledStore::Settings settings;
  SECTION("for one worker") {
    settings.breaksAt = 2;
    scheduler.add("other", [&] { ScheduledStore(memory, scheduler, {}).set("key", {1}); });
  }
  SECTION("for all") {
    settings.goneAt = 2;
  }
  int done = 0;
  scheduler.add(
      "worker",
      [&] {
        ScheduledStore store(memory, scheduler, settings);
        for (;; ++done) {
          store.check("key");
        }
      },
      std::chrono::seconds(1));
  CHECK(scheduler.run().size() == 1); // what it threw
  CHECK(done == 2);
}
