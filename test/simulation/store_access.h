// A simulated process's way to the store that all share, which may fail.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "test/unit/support/memory_store.h"

namespace torchwire::simulation {

/// How many of the next operations fail, and whether they take effect all the same. A value.
struct StoreFailures {
  int count = 0;
  bool takeEffect = false;
};

/// Who is told of what a process does to the store.
struct StoreNotes {
  std::function<void()> failed;
  std::function<void(const std::string& key)> exchanged; // by compare-and-set, perhaps in vain
};

/// Not thread-safe.
class StoreAccess final : public KeyValueStore {
 private:
  template <typename Operation>
  auto perform(Operation operation) {
    if (failures_.count == 0) {
      return operation();
    }
    --failures_.count;
    if (failures_.takeEffect) {
      static_cast<void>(operation());
    }
    notes_.failed();
    throw std::runtime_error("connection reset by peer");
  }

 public:
  StoreAccess(MemoryStore& store, StoreFailures& failures, StoreNotes notes)
      : store_(store), failures_(failures), notes_(std::move(notes)) {}

  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override {
    return perform([&] {
      Value now = store_.compareSet(key, expected, wanted);
      notes_.exchanged(key);
      return now;
    });
  }
  Value get(const std::string& key) override {
    return perform([&] { return store_.get(key); });
  }
  void set(const std::string& key, const Value& value) override {
    perform([&] {
      store_.set(key, value);
      return true;
    });
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return perform([&] { return store_.add(key, amount); });
  }
  bool check(const std::string& key) override {
    return perform([&] { return store_.check(key); });
  }
  bool checkAll(const std::vector<std::string>& keys) override {
    return perform([&] { return store_.checkAll(keys); });
  }
  std::vector<Value> getAll(const std::vector<std::string>& keys) override {
    return perform([&] { return store_.getAll(keys); });
  }

 private:
  MemoryStore& store_;
  StoreFailures& failures_;
  const StoreNotes notes_;
};

} // namespace torchwire::simulation
