#include "backend/call/cancelled_calls.h"

#include <limits>

namespace torchwire {

void CancelledCalls::add(WorkerId caller, uint64_t callId) {
  MutexLock lock(mutex_);
  if (!calls_.insert({caller, callId}).second) {
    return;
  }
  inOrder_.emplace_back(caller, callId);
  if (inOrder_.size() > memory_) {
    calls_.erase(inOrder_.front());
    inOrder_.pop_front();
  }
  any_.store(true);
}

bool CancelledCalls::find(WorkerId caller, uint64_t callId) const {
  MutexLock lock(mutex_);
  return calls_.contains({caller, callId});
}

void CancelledCalls::remove(WorkerId caller, uint64_t callId) {
  MutexLock lock(mutex_);
  calls_.erase({caller, callId});
  if (calls_.empty()) {
    inOrder_.clear();
    any_.store(false);
  }
}

void CancelledCalls::forget(WorkerId caller) {
  MutexLock lock(mutex_);
  calls_.erase(
      calls_.lower_bound({caller, 0}),
      calls_.upper_bound({caller, std::numeric_limits<uint64_t>::max()}));
  if (calls_.empty()) {
    inOrder_.clear();
    any_.store(false);
  }
}

} // namespace torchwire
