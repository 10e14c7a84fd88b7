// A store that is trusted with availability alone: what it holds counts where a member of the group has written it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/membership/key_value_store.h"
#include "backend/wire/group_key.h"
#include "backend/wire/store_entry.h"

namespace torchwire {

/// The store holds what no member of the group has written, or what is older than what this worker has seen.
class UnprovenEntry : public std::runtime_error {
 public:
  explicit UnprovenEntry(const std::string& key);
};

/// Writes proofs beside values, and looks at them when it reads (wire/store_entry.h). Until it has a key it writes values
/// as they are, and takes what is there. What is added up is proven by nobody: a hint. Thread-safe if the store is.
class ProvenStore : public KeyValueStore {
 public:
  explicit ProvenStore(std::shared_ptr<KeyValueStore> store) : store_(std::move(store)) {}

  /// Proves with the first key, and accepts what any of them proves.
  void proveWith(std::vector<GroupKey> keys) EXCLUDES(mutex_);
  /// Writes anew, proven by the first key, what this worker has set, and of what it has seen that is changed by exchange
  /// what others of the keys prove.
  void renew() EXCLUDES(mutex_);
  /// Goes on, also with later keys, with those made of them: see GroupKey::derive().
  void deriveKeys(const char* purpose, const Value& common) EXCLUDES(mutex_);
  bool canProve() const EXCLUDES(mutex_);

  // As KeyValueStore's. They throw UnprovenEntry.
  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override;
  Value get(const std::string& key) override;
  Value getIfThere(const std::string& key) override;
  void set(const std::string& key, const Value& value) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool check(const std::string& key) override;
  bool checkAll(const std::vector<std::string>& keys) override;
  std::vector<Value> getAll(const std::vector<std::string>& keys) override;

  /// What is there, proven or not, where those who do not know the group's secret have to be heard, too.
  StoreEntry find(const std::string& key) EXCLUDES(mutex_);
  /// Likewise, without waiting, or for as long as getWithin() waits; an empty one where there is none.
  StoreEntry findIfThere(const std::string& key) EXCLUDES(mutex_);
  StoreEntry findWithin(std::chrono::milliseconds patience, const std::string& key)
      EXCLUDES(mutex_);
  /// As compareSet(), in the place of an entry that find() or this has returned; an empty one: of none.
  StoreEntry exchange(const std::string& key, const StoreEntry& expected, const Value& wanted)
      EXCLUDES(mutex_);

 private:
  struct Seen {
    uint64_t version = 0;
    Value value;
    Value bytes; // as the store has them
  };

  void derive() REQUIRES(mutex_);
  void renew(const std::string& key) EXCLUDES(mutex_);
  StoreEntry findAgain(const std::string& key) EXCLUDES(mutex_);
  Value toSet(const std::string& key, const Value& value) EXCLUDES(mutex_);
  bool isProvenByFirst(const std::string& key, const StoreEntry& entry) const EXCLUDES(mutex_);
  StoreEntry entryOf(const std::string& key, const Value& bytes) const REQUIRES(mutex_);
  Value bytesOf(const std::string& key, const Value& expected) const EXCLUDES(mutex_);
  uint64_t seenVersion(const std::string& key) const EXCLUDES(mutex_);
  StoreEntry read(const std::string& key, const Value& bytes, uint64_t atLeast) EXCLUDES(mutex_);

  const std::shared_ptr<KeyValueStore> store_;
  mutable Mutex mutex_{LockRank::provenStore};
  std::vector<GroupKey> keys_ GUARDED_BY(mutex_);
  const char* purpose_ GUARDED_BY(mutex_) = nullptr; // of deriving; null: the keys are as they are
  Value common_ GUARDED_BY(mutex_);
  std::map<std::string, Seen> seen_ GUARDED_BY(mutex_); // of what has versions
  std::map<std::string, Value> set_ GUARDED_BY(mutex_); // by this worker
};

} // namespace torchwire
