#include "backend/membership/proven_store.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/unit/support/memory_store.h"

using namespace torchwire;

namespace {

using Value = KeyValueStore::Value;

const GroupKey kKey(7, "0123456789abcdef0123456789abcdef");
const GroupKey kOtherKey(7, "another secret of thirty-two bytes");

Value valueOf(const std::string& text) {
  return {text.begin(), text.end()};
}

/// An access to a store that others have too.
struct Shared : KeyValueStore {
  explicit Shared(MemoryStore& its) : store(its) {}
  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override {
    happen(beforeExchange);
    return store.compareSet(key, expected, wanted);
  }
  Value get(const std::string& key) override {
    return store.get(key);
  }
  void set(const std::string& key, const Value& value) override {
    happen(beforeSet);
    store.set(key, value);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return store.add(key, amount);
  }
  bool check(const std::string& key) override {
    return store.check(key);
  }
  MemoryStore& store;
  std::function<void()> beforeExchange, beforeSet; // once

 private:
  static void happen(std::function<void()>& due) {
    if (const auto event = std::exchange(due, nullptr)) {
      event();
    }
  }
};

struct Worker : ProvenStore {
  explicit Worker(MemoryStore& store, const GroupKey* key = &kKey) : Worker(new Shared(store)) {
    if (key != nullptr) {
      proveWith({*key});
    }
  }
  Shared& access;

 private:
  explicit Worker(Shared* its) : ProvenStore(std::unique_ptr<KeyValueStore>(its)), access(*its) {}
};

} // namespace

TEST_CASE("members read what members have written", "[proven_store]") {
  MemoryStore store;
  Worker one(store), other(store);
  one.set("note", valueOf("here"));
  CHECK(other.get("note") == valueOf("here"));
  CHECK(one.compareSet("list", {}, valueOf("a")) == valueOf("a"));
  CHECK(other.compareSet("list", {}, valueOf("b")) == valueOf("a")); // one was first
  CHECK(other.compareSet("list", valueOf("a"), valueOf("ab")) == valueOf("ab"));
  CHECK(one.compareSet("list", valueOf("a"), valueOf("ac")) == valueOf("ab"));
  CHECK(one.compareSet("list", valueOf("ab"), valueOf("abc")) == valueOf("abc"));
  CHECK(other.get("list") == valueOf("abc"));
  CHECK(one.add("count", 2) == 2);
  CHECK(other.check("count"));
}

TEST_CASE("what a stranger has written is not read", "[proven_store]") {
  MemoryStore store;
  Worker member(store);
  member.set("note", valueOf("here"));
  SECTION("plain") {
    store.set("note", valueOf("there"));
  }
  SECTION("by another key") {
    store.set("note", StoreEntry::prove(kOtherKey, "note", 0, valueOf("there")));
  }
  SECTION("under another name") {
    member.set("other", valueOf("there"));
    store.set("note", store.get("other"));
  }
  SECTION("with one bit changed") {
    Value bytes = store.get("note");
    bytes[15] ^= 1;
    store.set("note", bytes);
  }
  SECTION("cut") {
    Value bytes = store.get("note");
    bytes.resize(20);
    store.set("note", bytes);
  }
  CHECK_THROWS_WITH(
      member.get("note"),
      Catch::Contains("entry 'note' was not written by a worker of this group"));
  CHECK_THROWS_AS(member.compareSet("note", {}, valueOf("mine")), UnprovenEntry);
  CHECK_FALSE(member.find("note").proven);
}

TEST_CASE("an old list is not read by those who have seen a later one", "[proven_store]") {
  MemoryStore store;
  Worker member(store), newcomer(store);
  member.compareSet("list", {}, valueOf("a"));
  const Value old = store.get("list");
  member.compareSet("list", valueOf("a"), valueOf("ab"));
  store.set("list", old);
  CHECK_THROWS_AS(member.get("list"), UnprovenEntry);
  CHECK(newcomer.get("list") == valueOf("a")); // it cannot know
}

TEST_CASE("a list that was deleted is not begun anew by those who have seen it", "[proven_store]") {
  MemoryStore store;
  Worker member(store);
  member.compareSet("list", {}, valueOf("a"));
  CHECK(member.compareSet("list", {}, valueOf("b")) == valueOf("a"));
  store.clear();
  CHECK_THROWS_WITH(
      member.compareSet("list", {}, valueOf("b")), Catch::Contains("has lost the entry 'list'"));
  CHECK_THROWS_WITH(
      member.compareSet("list", valueOf("a"), valueOf("ab")),
      Catch::Contains("has lost the entry 'list'"));
  CHECK_FALSE(store.check("list"));
}

TEST_CASE("the version of an entry that nobody has proven counts for nothing", "[proven_store]") {
  MemoryStore store;
  Worker member(store);
  store.set("list", StoreEntry::prove(kOtherKey, "list", UINT64_MAX, valueOf("planted")));
  CHECK(member.exchange("list", member.find("list"), valueOf("a")).proven);
  CHECK(member.compareSet("list", valueOf("a"), valueOf("ab")) == valueOf("ab"));
}

TEST_CASE("a list that is what it was before has another version", "[proven_store]") {
  MemoryStore store;
  Worker member(store);
  member.compareSet("list", {}, valueOf("a"));
  const Value first = store.get("list");
  member.compareSet("list", valueOf("a"), valueOf("ab"));
  member.compareSet("list", valueOf("ab"), valueOf("a"));
  CHECK(member.get("list") == valueOf("a"));
  CHECK(store.get("list") != first);
}

TEST_CASE("who has no key yet writes as it is, and reads without the proofs", "[proven_store]") {
  MemoryStore store;
  Worker member(store), stranger(store, nullptr);
  member.set("note", valueOf("here"));
  CHECK(stranger.get("note") == valueOf("here"));
  CHECK(stranger.compareSet("decision", {}, valueOf("no")) == valueOf("no"));
  CHECK(store.get("decision") == valueOf("no"));
  const StoreEntry found = member.find("decision");
  CHECK(found.value == valueOf("no"));
  CHECK_FALSE(found.proven);
  CHECK(member.exchange("decision", {}, valueOf("ok")).value == valueOf("no"));
  CHECK(member.exchange("decision", found, valueOf("ok")).proven); // in its place
}

TEST_CASE("keys that are made of others follow when those change", "[proven_store]") {
  MemoryStore store;
  Worker one(store), other(store);
  for (Worker* worker : {&one, &other}) {
    worker->deriveKeys("purpose", valueOf("common"));
  }
  one.proveWith({kOtherKey});
  other.proveWith({kOtherKey});
  one.set("note", valueOf("here"));
  CHECK(other.get("note") == valueOf("here"));
  Worker without(store, &kOtherKey);
  CHECK_THROWS_AS(without.get("note"), UnprovenEntry);
}

TEST_CASE("what is exchanged while the keys change is proven by the new one", "[proven_store]") {
  MemoryStore store;
  Worker ahead(store), one(store);
  ahead.proveWith({kOtherKey, kKey});
  one.proveWith({kKey, kOtherKey});
  ahead.compareSet("list", {}, valueOf("a"));
  CHECK(one.get("list") == valueOf("a"));
  one.access.beforeExchange = [&] { one.proveWith({kOtherKey, kKey}); };
  CHECK(one.compareSet("list", valueOf("a"), valueOf("ab")) == valueOf("ab"));
  CHECK(Worker(store, &kOtherKey).get("list") == valueOf("ab"));
}

TEST_CASE("what is set while the keys change is proven by the new one", "[proven_store]") {
  MemoryStore store;
  Worker one(store);
  one.access.beforeSet = [&] {
    one.proveWith({kOtherKey});
    one.renew(); // which is overwritten
  };
  one.set("note", valueOf("here"));
  CHECK(Worker(store, &kOtherKey).get("note") == valueOf("here"));
}

TEST_CASE("while the secret is changed what either key proves is read", "[proven_store]") {
  MemoryStore store;
  Worker before(store), between(store), after(store, &kOtherKey);
  before.compareSet("list", {}, valueOf("a"));
  CHECK_THROWS_AS(after.get("list"), UnprovenEntry);
  CHECK(between.get("list") == valueOf("a"));
  between.set("note", valueOf("here"));
  between.proveWith({kOtherKey, kKey});
  CHECK(between.get("list") == valueOf("a"));
  const Value proven = store.get("list");
  between.renew();
  CHECK(after.get("list") == valueOf("a"));
  CHECK(after.get("note") == valueOf("here"));
  CHECK_THROWS_AS(before.get("list"), UnprovenEntry);
  const Value renewed = store.get("list");
  CHECK(renewed != proven);
  between.renew();
  CHECK(store.get("list") == renewed); // once is enough
}
