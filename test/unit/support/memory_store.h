// A rendezvous store in memory, which counts what is asked of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/membership/local_store.h"

namespace torchwire {

/// What was asked of a store. A value.
struct StoreTraffic {
  uint64_t compareSets = 0;
  uint64_t gets = 0;
  uint64_t sets = 0;
  uint64_t adds = 0;
  uint64_t checks = 0;
  uint64_t bytes = 0; // of keys and values, to the store and back

  uint64_t operations() const {
    return compareSets + gets + sets + adds + checks;
  }
  StoreTraffic since(const StoreTraffic& before) const;
  /// For reports: "12 operations (4 compare-and-set, ...), 345 bytes".
  std::string describe() const;
};

/// For one thread at a time: so nobody would ever write the missing key that get() would wait for, and it throws. Used by
/// one thread at a time.
class MemoryStore : public LocalStore {
 public:
  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override;
  Value get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;
  bool checkAll(const std::vector<std::string>& keys) override;
  std::vector<Value> getAll(const std::vector<std::string>& keys) override;

  /// As check(), but not counted.
  bool has(const std::string& key) {
    return LocalStore::check(key);
  }
  const StoreTraffic& traffic() const {
    return traffic_;
  }

 private:
  void count(uint64_t StoreTraffic::* kind, size_t bytes);

  StoreTraffic traffic_;
};

} // namespace torchwire
