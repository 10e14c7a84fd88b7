#include "backend/seen_calls.h"

namespace torchwire {

bool SeenCalls::add(WorkerId caller, uint64_t callId) {
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

void SeenCalls::forget(WorkerId caller) {
  MutexLock lock(mutex_);
  callers_.erase(caller);
}

} // namespace torchwire
