// Stores that do not answer.
#include "backend/membership/bounded_store.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "backend/membership/local_store.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Value = KeyValueStore::Value;

namespace {

/// Answers get() only when told to.
class SilentStore : public LocalStore {
 public:
  explicit SilentStore(std::shared_future<void> speak) : speak_(std::move(speak)) {}

  Value get(const std::string& key) override {
    speak_.wait();
    return LocalStore::get(key);
  }

 private:
  const std::shared_future<void> speak_;
};

/// In which another worker writes each key before the third look.
class LateStore : public LocalStore {
 public:
  explicit LateStore(int& looks) : looks_(looks) {}

  Value getIfThere(const std::string&) override {
    return ++looks_ < 3 ? Value() : Value{7};
  }

 private:
  int& looks_;
};

/// Notes which thread destroys it.
class NotedStore : public LocalStore {
 public:
  explicit NotedStore(std::thread::id& destroyedBy) : destroyedBy_(destroyedBy) {}
  ~NotedStore() override {
    destroyedBy_ = std::this_thread::get_id();
  }

 private:
  std::thread::id& destroyedBy_;
};

} // namespace

TEST_CASE("a bounded store does what the store does", "[bounded_store]") {
  BoundedStore store(std::make_unique<LocalStore>(), milliseconds(60000));
  CHECK(store.compareSet("key", {}, {1}) == Value{1});
  CHECK(store.get("key") == Value{1});
  store.set("key", {2});
  CHECK(store.get("key") == Value{2});
  CHECK(store.add("counter", 3) == 3);
  CHECK(store.check("counter"));
  CHECK_FALSE(store.check("other"));
  CHECK_THROWS_WITH(store.get("other"), "nobody will ever write 'other'");
}

TEST_CASE("a value that another worker is about to write is waited for", "[bounded_store]") {
  int looks = 0;
  BoundedStore store(std::make_unique<LateStore>(looks), milliseconds(60000));
  CHECK(store.getWithin(milliseconds(60000), "key") == Value{7});
  CHECK(looks == 3);
}

TEST_CASE(
    "a value that nobody writes is waited for as long as the caller says", "[bounded_store]") {
  BoundedStore store(std::make_unique<LocalStore>(), milliseconds(60000));
  CHECK(store.getWithin(milliseconds(0), "key").empty());
  const auto begun = std::chrono::steady_clock::now();
  CHECK(store.getWithin(milliseconds(5), "key").empty());
  CHECK(std::chrono::steady_clock::now() - begun >= milliseconds(5));
}

TEST_CASE("a store that does not answer is waited for once, and never again", "[bounded_store]") {
  std::promise<void> speak;
  {
    BoundedStore store(std::make_unique<SilentStore>(speak.get_future().share()), milliseconds(20));
    CHECK_THROWS_WITH(store.get("key"), "no answer within 20 ms");
    CHECK_THROWS_WITH(store.check("key"), "no answer within 20 ms");
  } // does not wait for the store either
  speak.set_value();
}

TEST_CASE("who waits for a store can be interrupted", "[bounded_store]") {
  std::promise<void> speak;
  BoundedStore store(
      std::make_unique<SilentStore>(speak.get_future().share()), std::chrono::hours(1),
      [] { throw Interrupted(); });
  CHECK_THROWS_AS(store.get("key"), Interrupted);
  CHECK_THROWS_AS(store.check("key"), Interrupted); // waits behind the other one
  speak.set_value();
}

TEST_CASE("a store goes with the bounded one, not with its thread", "[bounded_store]") {
  const auto thread = makeStoreThread();
  for (int i = 0; i < 1000; ++i) {
    std::thread::id destroyedBy;
    {
      BoundedStore store(
          std::make_unique<NotedStore>(destroyedBy), milliseconds(60000), [] {}, thread);
      store.set("key", {1});
    }
    REQUIRE(destroyedBy == std::this_thread::get_id());
  }
}
