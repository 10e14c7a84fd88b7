#include "backend/call/trace_log.h"

#include <pthread.h>

#include <utility>

#include "backend/base/guarded.h"

namespace torchwire {

thread_local TraceLog::Clock::time_point TraceLog::Making::begun_;

TraceLog::Reading::~Reading() {
  if (begun_ == Clock::time_point() || !log_.isOn()) {
    return;
  }
  guarded("tracing a call", [this] {
    Event event;
    event.kind = Kind::reading;
    event.peer = peer_;
    event.callId = callId_;
    event.begun = event.middle = begun_;
    event.ended = Clock::now();
    event.thread = static_cast<uint64_t>(pthread_self());
    log_.add(event);
  });
}

void TraceLog::start(size_t capacity) {
  MutexLock lock(mutex_);
  taken_ = {};
  capacity_ = capacity;
  on_.store(true, std::memory_order_relaxed);
}

TraceLog::Taken TraceLog::stop() {
  MutexLock lock(mutex_);
  on_.store(false, std::memory_order_relaxed);
  return std::exchange(taken_, {});
}

void TraceLog::add(const Event& event) {
  MutexLock lock(mutex_);
  if (!isOn()) {
    return; // it has just been stopped
  }
  if (taken_.events.size() < capacity_) {
    taken_.events.push_back(event);
  } else {
    ++taken_.lost;
  }
}

} // namespace torchwire
