#include "backend/call/cancelled_calls.h"

#include <iterator>
#include <limits>

namespace torchwire {

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
  requested_.store(true);
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

std::shared_ptr<Cancellation> CancelledCalls::watch(WorkerId caller, uint64_t callId) {
  MutexLock lock(mutex_);
  std::shared_ptr<Cancellation>& watched = watched_[{caller, callId}];
  if (!watched) {
    watched = std::make_shared<Cancellation>();
    if (calls_.contains({caller, callId})) {
      watched->request(); // it has no callbacks yet
    }
  }
  any_.store(true);
  return watched;
}

bool CancelledCalls::find(WorkerId caller, uint64_t callId) const {
  MutexLock lock(mutex_);
  return calls_.contains({caller, callId});
}

CancelledCalls::Tasks CancelledCalls::remove(WorkerId caller, uint64_t callId) {
  std::shared_ptr<Cancellation> watched;
  {
    MutexLock lock(mutex_);
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
    Tasks tasks = cancellation->request();
    all.insert(
        all.end(), std::make_move_iterator(tasks.begin()), std::make_move_iterator(tasks.end()));
  }
  return all;
}

void CancelledCalls::noteWhetherAny() {
  if (calls_.empty()) {
    inOrder_.clear();
  }
  any_.store(!calls_.empty() || !watched_.empty());
}

} // namespace torchwire
