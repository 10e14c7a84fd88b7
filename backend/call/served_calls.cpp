#include "backend/call/served_calls.h"

#include <pthread.h>

namespace torchwire {
namespace {

constexpr size_t kSpare = 256;
constexpr auto kRelaxed = std::memory_order_relaxed;

} // namespace

ServedCalls::Ticket ServedCalls::add(const Request& request) {
  const auto now = Clock::now();
  MutexLock lock(mutex_);
  if (spare_.empty()) {
    entries_.emplace_back();
  } else {
    entries_.splice(entries_.end(), spare_, spare_.begin());
  }
  Entry& entry = entries_.back();
  entry.request = request;
  entry.arrived = now;
  entry.state.store(State::queued, kRelaxed);
  entry.since.store(now, kRelaxed);
  entry.started.store(Clock::time_point(), kRelaxed);
  entry.thread.store(0, kRelaxed);
  entry.rref.store(0, kRelaxed);
  return {this, std::prev(entries_.end())};
}

void ServedCalls::Ticket::start() {
  const auto now = Clock::now();
  entry_->started.store(now, kRelaxed);
  entry_->since.store(now, kRelaxed);
  entry_->thread.store(static_cast<uint64_t>(pthread_self()), kRelaxed);
  entry_->state.store(State::running, kRelaxed);
}

void ServedCalls::Ticket::returned() {
  entry_->since.store(Clock::now(), kRelaxed);
  entry_->state.store(State::returned, kRelaxed);
  entry_->thread.store(0, kRelaxed);
}

std::chrono::nanoseconds ServedCalls::Ticket::end() {
  ServedCalls* const calls = std::exchange(calls_, nullptr);
  return calls == nullptr ? std::chrono::nanoseconds(0) : calls->remove(entry_);
}

std::chrono::nanoseconds ServedCalls::remove(Entries::iterator entry) {
  const auto now = Clock::now();
  const auto started = entry->started.load(kRelaxed);
  const auto age = now - entry->arrived;
  FunctionMetrics* const function = entry->request.function;
  if (function != nullptr && started != Clock::time_point()) { // else it was dropped
    function->queue.add(started - entry->arrived);
    function->run.add(now - started);
    if (trace_.isOn()) {
      trace_.add(
          {TraceLog::Kind::callee, entry->request.caller, entry->request.callId, function->id,
           entry->arrived, started, now, age, ErrorCode::none, entry->thread.load(kRelaxed)});
    }
  }
  MutexLock lock(mutex_);
  if (spare_.size() < kSpare) {
    spare_.splice(spare_.end(), entries_, entry);
  } else {
    entries_.erase(entry);
  }
  return age;
}

ServedCalls::Status ServedCalls::statusOf(const Entry& entry, Clock::time_point now) {
  Status status;
  status.request = entry.request;
  status.state = entry.state.load(kRelaxed);
  status.inState = now - entry.since.load(kRelaxed);
  status.age = now - entry.arrived;
  status.thread = entry.thread.load(kRelaxed);
  status.rref = entry.rref.load(kRelaxed);
  return status;
}

std::vector<ServedCalls::Status> ServedCalls::all() const {
  const auto now = Clock::now();
  std::vector<Status> all;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    all.push_back(statusOf(entry, now));
  }
  return all;
}

std::optional<ServedCalls::Status> ServedCalls::find(WorkerId caller, uint64_t callId) const {
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.request.caller == caller && entry.request.callId == callId) {
      return statusOf(entry, Clock::now());
    }
  }
  return std::nullopt;
}

} // namespace torchwire
