#include "backend/membership/local_store.h"

#include <stdexcept>

namespace torchwire {

LocalStore::Value LocalStore::compareSet(
    const std::string& key, const Value& expected, const Value& wanted) {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return expected.empty() ? values_[key] = wanted : expected;
  }
  if (it->second == expected) {
    it->second = wanted;
  }
  return it->second;
}

LocalStore::Value LocalStore::get(const std::string& key) {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    throw std::runtime_error("nobody will ever write '" + key + "'");
  }
  return it->second;
}

void LocalStore::set(const std::string& key, const Value& value) {
  values_[key] = value;
}

int64_t LocalStore::add(const std::string& key, int64_t amount) {
  Value& value = values_[key];
  // PyTorch's stores keep counters as text, too.
  const std::string before(value.begin(), value.end());
  const int64_t sum = (before.empty() ? 0 : std::stoll(before)) + amount;
  const std::string after = std::to_string(sum);
  value.assign(after.begin(), after.end());
  return sum;
}

bool LocalStore::check(const std::string& key) {
  return values_.contains(key);
}

} // namespace torchwire
