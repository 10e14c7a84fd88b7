// Which calls have been served already.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_set>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Remembers the latest calls of each caller, so that a request which comes twice is served once. A link does not
/// deliver twice; whoever tests a system with faults does, and a proxy may. Thread-safe.
class DuplicateFilter {
 public:
  /// `memory`: how many calls of one caller are remembered.
  explicit DuplicateFilter(size_t memory = 4096) : memory_(memory) {}

  /// False when this call has been added before.
  bool add(WorkerId caller, uint64_t callId) EXCLUDES(mutex_);

  /// The caller is gone: who comes back under its rank counts its calls from 1.
  void forget(WorkerId caller) EXCLUDES(mutex_);

 private:
  struct Latest {
    std::unordered_set<uint64_t> ids;
    std::deque<uint64_t> inOrder;
  };

  const size_t memory_;
  Mutex mutex_{LockRank::duplicates};
  std::map<WorkerId, Latest> callers_ GUARDED_BY(mutex_);
};

} // namespace torchwire
