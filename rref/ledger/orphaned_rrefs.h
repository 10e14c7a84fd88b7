// The RRefs that this worker still uses though their owner has died.
#pragma once

#include <atomic>
#include <unordered_map>

#include "backend/base/annotations.h"
#include "rref/ledger/global_id.h"

namespace torchwire {

/// Another process may have come under the name and the rank of the owner. It has never heard of these RRefs: to ask it
/// would mean to wait for a creation that never comes. Thread-safe.
class OrphanedRRefs {
 public:
  /// The owner of an RRef has died, of which this worker has a fork.
  void add(const GlobalId& rref, const GlobalId& fork) EXCLUDES(mutex_);
  /// Whether the fork was one of these; it is no more.
  bool remove(const GlobalId& fork) EXCLUDES(mutex_);
  bool contains(const GlobalId& rref) const EXCLUDES(mutex_);
  bool has(const GlobalId& fork) const EXCLUDES(mutex_);
  /// Without a lock, for where there are none as a rule.
  bool any() const {
    return any_.load(std::memory_order_acquire);
  }

 private:
  std::atomic<bool> any_{false};
  mutable Mutex mutex_{LockRank::orphanedRRefs};
  std::unordered_map<GlobalId, GlobalId, GlobalIdHash> rrefs_ GUARDED_BY(mutex_); // by fork
  std::unordered_map<GlobalId, size_t, GlobalIdHash> forks_ GUARDED_BY(mutex_); // how many, by RRef
};

} // namespace torchwire
