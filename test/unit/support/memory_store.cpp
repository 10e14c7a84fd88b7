#include "test/unit/support/memory_store.h"

namespace torchwire {

StoreTraffic StoreTraffic::since(const StoreTraffic& before) const {
  StoreTraffic part = *this;
  part.compareSets -= before.compareSets;
  part.gets -= before.gets;
  part.sets -= before.sets;
  part.adds -= before.adds;
  part.checks -= before.checks;
  part.bytes -= before.bytes;
  return part;
}

std::string StoreTraffic::describe() const {
  return std::to_string(operations()) + " operations (" + std::to_string(compareSets) +
      " compareSet, " + std::to_string(gets) + " get, " + std::to_string(sets) + " set, " +
      std::to_string(adds) + " add, " + std::to_string(checks) + " check), " +
      std::to_string(bytes) + " bytes";
}

MemoryStore::Value MemoryStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  Value now = LocalStore::compareSet(key, expected, wanted);
  count(&StoreTraffic::compareSets, key.size() + expected.size() + wanted.size() + now.size());
  return now;
}

MemoryStore::Value MemoryStore::get(const std::string& key) {
  Value value = LocalStore::get(key);
  count(&StoreTraffic::gets, key.size() + value.size());
  return value;
}

void MemoryStore::set(const std::string& key, const Value& value) {
  LocalStore::set(key, value);
  count(&StoreTraffic::sets, key.size() + value.size());
}

int64_t MemoryStore::add(const std::string& key, int64_t amount) {
  const int64_t sum = LocalStore::add(key, amount);
  count(&StoreTraffic::adds, key.size() + 2 * sizeof(sum));
  return sum;
}

bool MemoryStore::check(const std::string& key) {
  count(&StoreTraffic::checks, key.size() + 1);
  return has(key);
}

bool MemoryStore::checkAll(const std::vector<std::string>& keys) {
  size_t bytes = 1;
  bool all = true;
  for (const std::string& key : keys) {
    bytes += key.size();
    all = all && has(key);
  }
  count(&StoreTraffic::checks, bytes);
  return all;
}

std::vector<MemoryStore::Value> MemoryStore::getAll(const std::vector<std::string>& keys) {
  std::vector<Value> values;
  size_t bytes = 0;
  for (const std::string& key : keys) {
    values.push_back(LocalStore::get(key));
    bytes += key.size() + values.back().size();
  }
  count(&StoreTraffic::gets, bytes);
  return values;
}

void MemoryStore::count(uint64_t StoreTraffic::* kind, size_t bytes) {
  ++(traffic_.*kind);
  traffic_.bytes += bytes;
}

} // namespace torchwire
