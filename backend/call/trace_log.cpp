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

/// For one more, which is else counted as lost.
bool TraceLog::hasRoom() {
  if (!isOn()) {
    return false; // it has just been stopped
  }
  if (taken_.events.size() + taken_.notes.size() < capacity_) {
    return true;
  }
  ++taken_.lost;
  return false;
}

void TraceLog::add(const Event& event) {
  MutexLock lock(mutex_);
  if (hasRoom()) {
    taken_.events.push_back(event);
  }
}

void TraceLog::add(Note note) {
  MutexLock lock(mutex_);
  if (hasRoom()) {
    taken_.notes.push_back(std::move(note));
  }
}

} // namespace torchwire
