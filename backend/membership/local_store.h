// A key-value store in this process's memory.
#pragma once

#include <map>
#include <string>

#include "backend/membership/key_value_store.h"

namespace torchwire {

/// Does what PyTorch's TCPStore does, but waits for nothing: get() throws where the key is missing. Not thread-safe.
class LocalStore : public KeyValueStore {
 public:
  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override;
  Value get(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;

  void clear() {
    values_.clear();
  }

 private:
  std::map<std::string, Value> values_;
};

} // namespace torchwire
