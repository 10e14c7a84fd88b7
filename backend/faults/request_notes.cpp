#include "backend/faults/request_notes.h"

namespace torchwire::faults {

void RequestNotes::add(const std::string& caller, uint64_t callId, RequestNote note) {
  MutexLock lock(mutex_);
  const auto [it, isNew] = notes_.try_emplace(Key(caller, callId));
  Kept& kept = it->second;
  kept.note = note;
  if (!isNew) {
    ++kept.copies;
    return;
  }
  kept.age = byAge_.insert(byAge_.end(), it->first);
  if (notes_.size() > most_) {
    notes_.erase(byAge_.front());
    byAge_.pop_front();
  }
}

std::optional<RequestNote> RequestNotes::take(const std::string& caller, uint64_t callId) {
  MutexLock lock(mutex_);
  const auto it = notes_.find(Key(caller, callId));
  if (it == notes_.end()) {
    return std::nullopt;
  }
  const RequestNote note = it->second.note;
  if (--it->second.copies == 0) {
    byAge_.erase(it->second.age);
    notes_.erase(it);
  }
  return note;
}

std::vector<uint64_t> RequestNotes::takeAll(const std::string& caller) {
  std::vector<uint64_t> calls;
  MutexLock lock(mutex_);
  auto it = notes_.lower_bound(Key(caller, 0));
  while (it != notes_.end() && it->first.first == caller) {
    calls.push_back(it->first.second);
    byAge_.erase(it->second.age);
    it = notes_.erase(it);
  }
  return calls;
}

} // namespace torchwire::faults
