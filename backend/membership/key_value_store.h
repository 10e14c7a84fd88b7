// What Membership asks of the rendezvous store, as PyTorch's stores do it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace torchwire {

/// A worker's access to the store that it shares with the group's other workers. Each operation is one
/// step that no other worker's operation comes in between. Keys are never deleted.
///
/// Every operation throws an exception derived from std::exception if the store cannot be reached, does
/// not answer in its own time-out, or refuses. Whether the operation has taken effect is unknown then.
/// The first line of what() says why; what follows is not for users.
/// Not thread-safe: used by one thread at a time.
class KeyValueStore {
 public:
  using Value = std::vector<uint8_t>;

  KeyValueStore() = default;
  virtual ~KeyValueStore() = default;
  KeyValueStore(const KeyValueStore&) = delete;
  KeyValueStore& operator=(const KeyValueStore&) = delete;

  /// Writes `wanted` if the key's value is `expected`, or if there is no such key and `expected` is empty.
  /// Returns the key's value afterwards: so it was written, here or before, if that is `wanted`. One trap:
  /// with no such key and an `expected` that is not empty, nothing is written and `expected` is returned.
  virtual Value compareSet(const std::string& key, const Value& expected, const Value& wanted) = 0;

  /// The key's value. Waits for a missing key until someone writes it; throws after the store's time-out.
  virtual Value get(const std::string& key) = 0;

  virtual void set(const std::string& key, const Value& value) = 0;

  /// Adds to a counter, which is 0 at first, and returns its new value. The same key is used by no other
  /// operation but check().
  virtual int64_t add(const std::string& key, int64_t amount) = 0;

  /// Whether the key has been written. Does not wait.
  virtual bool check(const std::string& key) = 0;

  /// The key's value; empty where it has not been written. Does not wait.
  virtual Value getIfThere(const std::string& key) {
    return check(key) ? get(key) : Value();
  }

  /// The same, but a store that can wait looks again and again, for as long as `patience`.
  virtual Value getWithin(std::chrono::milliseconds /*patience*/, const std::string& key) {
    return getIfThere(key);
  }

  // The same for several keys, where a store can in one operation. Not for none.
  virtual bool checkAll(const std::vector<std::string>& keys) {
    return std::all_of(
        keys.begin(), keys.end(), [this](const std::string& key) { return check(key); });
  }
  virtual std::vector<Value> getAll(const std::vector<std::string>& keys) {
    std::vector<Value> values;
    for (const std::string& key : keys) {
      values.push_back(get(key));
    }
    return values;
  }
};

} // namespace torchwire
