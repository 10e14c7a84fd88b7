#include "rref/ledger/orphaned_rrefs.h"

namespace torchwire {

void OrphanedRRefs::add(const GlobalId& rref, const GlobalId& fork) {
  MutexLock lock(mutex_);
  if (rrefs_.emplace(fork, rref).second) {
    ++forks_[rref];
  }
  any_.store(true, std::memory_order_release);
}

bool OrphanedRRefs::remove(const GlobalId& fork) {
  MutexLock lock(mutex_);
  const auto found = rrefs_.find(fork);
  if (found == rrefs_.end()) {
    return false;
  }
  const auto count = forks_.find(found->second);
  if (--count->second == 0) {
    forks_.erase(count);
  }
  rrefs_.erase(found);
  any_.store(!rrefs_.empty(), std::memory_order_release);
  return true;
}

bool OrphanedRRefs::has(const GlobalId& fork) const {
  MutexLock lock(mutex_);
  return rrefs_.contains(fork);
}

bool OrphanedRRefs::contains(const GlobalId& rref) const {
  MutexLock lock(mutex_);
  return forks_.contains(rref);
}

} // namespace torchwire
