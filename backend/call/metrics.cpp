#include "backend/call/metrics.h"

namespace torchwire {

void ActiveCalls::start() {
  MutexLock lock(mutex_);
  ++count_.started;
}

void ActiveCalls::finish() {
  MutexLock lock(mutex_);
  ++count_.finished;
  if (count_.started == count_.finished) {
    none_.notify_all();
  }
}

ActiveCalls::Count ActiveCalls::count() const {
  MutexLock lock(mutex_);
  return count_;
}

bool ActiveCalls::waitForNone(std::chrono::milliseconds patience) const {
  MutexLock lock(mutex_);
  return none_.wait_for(
      lock, patience, [this]() REQUIRES(mutex_) { return count_.started == count_.finished; });
}

} // namespace torchwire
