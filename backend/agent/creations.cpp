#include "backend/agent/creations.h"

namespace torchwire {

void Creations::add(const Future& future, uint64_t callId) {
  {
    MutexLock lock(mutex_);
    calls_.emplace(&future, callId);
  }
  if (future.completed()) { // perhaps before it was here to be removed
    remove(future);
  }
}

void Creations::remove(const Future& future) {
  MutexLock lock(mutex_);
  calls_.erase(&future);
}

std::optional<uint64_t> Creations::find(const Future& future) const {
  MutexLock lock(mutex_);
  const auto it = calls_.find(&future);
  return it == calls_.end() ? std::nullopt : std::optional(it->second);
}

} // namespace torchwire
