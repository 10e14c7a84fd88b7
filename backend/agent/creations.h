// Creations of RRefs that are under way.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "backend/base/annotations.h"

namespace torchwire {

/// Their calls, by the futures that those complete. Thread-safe.
class Creations {
 public:
  using Future = c10::ivalue::Future;

  /// Of a call that has been entered, and may have ended.
  void add(const Future& future, uint64_t callId) EXCLUDES(mutex_);
  /// The call has ended, and its future is complete.
  void remove(const Future& future) EXCLUDES(mutex_);
  /// Nullopt: it has ended, or the future is another's.
  std::optional<uint64_t> find(const Future& future) const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_{LockRank::activeCalls}; // which is never held when this one is taken
  // Each future lives at least as long as its call.
  std::unordered_map<const Future*, uint64_t> calls_ GUARDED_BY(mutex_);
};

} // namespace torchwire
