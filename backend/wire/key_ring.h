// The keys of a group whose secret may change while it runs.
#pragma once

#include <vector>

#include "backend/base/annotations.h"
#include "backend/wire/group_key.h"

namespace torchwire {

/// The first key is used, all are accepted. So the secret of a group is changed worker by worker: first all accept the new
/// one besides, then they use it, then the old one goes. Thread-safe.
class KeyRing {
 public:
  /// Of one group, at least one.
  explicit KeyRing(std::vector<GroupKey> keys) : keys_(std::move(keys)) {}
  explicit KeyRing(const GroupKey& key) : KeyRing(std::vector<GroupKey>{key}) {}

  GroupKey current() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return keys_.front();
  }
  std::vector<GroupKey> all() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return keys_;
  }
  void replace(std::vector<GroupKey> keys) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    keys_.swap(keys);
  }

 private:
  mutable Mutex mutex_{LockRank::keyRing};
  std::vector<GroupKey> keys_ GUARDED_BY(mutex_);
};

} // namespace torchwire
