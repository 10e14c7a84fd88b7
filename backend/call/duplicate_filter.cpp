#include "backend/call/duplicate_filter.h"

namespace torchwire {

bool DuplicateFilter::add(WorkerId caller, uint64_t callId) {
  MutexLock lock(mutex_);
  Latest& latest = callers_[caller];
  if (!latest.ids.insert(callId).second) {
    return false;
  }
  latest.inOrder.push_back(callId);
  if (latest.inOrder.size() > memory_) {
    latest.ids.erase(latest.inOrder.front());
    latest.inOrder.pop_front();
  }
  return true;
}

void DuplicateFilter::forget(WorkerId caller) {
  MutexLock lock(mutex_);
  callers_.erase(caller);
}

} // namespace torchwire
