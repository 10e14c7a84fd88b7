#include "rref/ledger/rref_metadata.h"

#include <algorithm>
#include <utility>

namespace torchwire {

RRefMetadata::Clock::time_point RRefMetadata::see(const GlobalId& id, Clock::time_point now) {
  MutexLock lock(mutex_);
  return notes_.try_emplace(id, Note{now, ""}).first->second.since;
}

void RRefMetadata::placeAt(const GlobalId& id, std::string site, Clock::time_point now) {
  MutexLock lock(mutex_);
  notes_.try_emplace(id, Note{now, ""}).first->second.site = std::move(site);
}

std::optional<RRefMetadata::Note> RRefMetadata::find(const GlobalId& id) const {
  MutexLock lock(mutex_);
  const auto found = notes_.find(id);
  return found == notes_.end() ? std::nullopt : std::optional<Note>(found->second);
}

bool RRefMetadata::wantsSweep() const {
  MutexLock lock(mutex_);
  return notes_.size() >= nextSweep_;
}

void RRefMetadata::sweep(const Ids& alive, Clock::time_point now) {
  MutexLock lock(mutex_);
  std::erase_if(notes_, [&](const auto& entry) {
    return now - entry.second.since > kGrace && !alive.contains(entry.first);
  });
  nextSweep_ = std::max(kFirstSweep, 2 * notes_.size());
}

size_t RRefMetadata::size() const {
  MutexLock lock(mutex_);
  return notes_.size();
}

} // namespace torchwire
