#include "backend/call/cancelled_calls.h"

#include <iterator>
#include <limits>

namespace torchwire {
namespace {

void append(std::vector<Task>& all, std::vector<Task> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

} // namespace

bool Cancellation::add(Task& callback) {
  MutexLock lock(mutex_);
  if (requested_.load()) {
    return false;
  }
  if (!ended_) {
    callbacks_.push_back(std::move(callback));
  }
  return true;
}

Cancellation::Tasks Cancellation::request() {
  MutexLock lock(mutex_);
  if (!ended_) {
    requested_.store(true);
  }
  return std::exchange(callbacks_, {});
}

Cancellation::Tasks Cancellation::end() {
  MutexLock lock(mutex_);
  ended_ = true;
  return std::exchange(callbacks_, {});
}

CancelledCalls::Tasks CancelledCalls::add(WorkerId caller, uint64_t callId) {
  std::shared_ptr<Cancellation> watched;
  {
    MutexLock lock(mutex_);
    if (!calls_.insert({caller, callId}).second) {
      return {};
    }
    inOrder_.emplace_back(caller, callId);
    if (inOrder_.size() > memory_) {
      calls_.erase(inOrder_.front());
      inOrder_.pop_front();
    }
    any_.store(true);
    const auto it = watched_.find({caller, callId});
    if (it == watched_.end()) {
      return {};
    }
    watched = it->second;
  }
  return watched->request();
}

std::shared_ptr<Cancellation> CancelledCalls::watch(
    WorkerId caller, uint64_t callId, Moment arrival) {
  MutexLock lock(mutex_);
  if (wasLost(caller, arrival)) {
    auto cancelled = std::make_shared<Cancellation>();
    cancelled->request(); // it has no callbacks yet
    return cancelled;
  }
  std::shared_ptr<Cancellation>& watched = watched_[{caller, callId}];
  if (!watched) {
    watched = std::make_shared<Cancellation>();
    if (calls_.contains({caller, callId})) {
      watched->request();
    }
  }
  any_.store(true);
  return watched;
}

bool CancelledCalls::find(WorkerId caller, uint64_t callId) const {
  MutexLock lock(mutex_);
  return calls_.contains({caller, callId});
}

CancelledCalls::Tasks CancelledCalls::remove(WorkerId caller, uint64_t callId, Moment arrival) {
  std::shared_ptr<Cancellation> watched;
  {
    MutexLock lock(mutex_);
    if (wasLost(caller, arrival)) {
      return {}; // what is there is of another call
    }
    calls_.erase({caller, callId});
    if (auto node = watched_.extract({caller, callId})) {
      watched = std::move(node.mapped());
    }
    noteWhetherAny();
  }
  return watched ? watched->end() : Tasks();
}

CancelledCalls::Tasks CancelledCalls::forget(WorkerId caller) {
  const Key first{caller, 0};
  const Key last{caller, std::numeric_limits<uint64_t>::max()};
  std::vector<std::shared_ptr<Cancellation>> watched;
  {
    MutexLock lock(mutex_);
    lost_[caller] = ++now_;
    calls_.erase(calls_.lower_bound(first), calls_.upper_bound(last));
    const auto begin = watched_.lower_bound(first);
    const auto end = watched_.upper_bound(last);
    for (auto it = begin; it != end; ++it) {
      watched.push_back(std::move(it->second));
    }
    watched_.erase(begin, end);
    noteWhetherAny();
  }
  Tasks all;
  for (const auto& cancellation : watched) {
    append(all, cancellation->request());
  }
  return all;
}

CancelledCalls::Tasks CancelledCalls::endAll() {
  std::map<Key, std::shared_ptr<Cancellation>> watched;
  {
    MutexLock lock(mutex_);
    watched.swap(watched_);
    noteWhetherAny();
  }
  Tasks all;
  for (const auto& [call, cancellation] : watched) {
    append(all, cancellation->end());
  }
  return all;
}

/// Whether that was after the moment.
bool CancelledCalls::wasLost(WorkerId caller, Moment since) const {
  const auto lost = lost_.find(caller);
  return lost != lost_.end() && lost->second > since;
}

void CancelledCalls::noteWhetherAny() {
  if (calls_.empty()) {
    inOrder_.clear();
  }
  any_.store(!calls_.empty() || !watched_.empty());
}

} // namespace torchwire
