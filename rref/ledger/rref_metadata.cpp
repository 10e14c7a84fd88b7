#include "rref/ledger/rref_metadata.h"

#include <algorithm>
#include <utility>

namespace torchwire {

RRefMetadata::Clock::time_point RRefMetadata::see(const GlobalId& id, Clock::time_point now) {
  MutexLock lock(mutex_);
  return entries_.try_emplace(id, Entry{now, ""}).first->second.since;
}

void RRefMetadata::placeAt(const GlobalId& id, std::string site, Clock::time_point now) {
  MutexLock lock(mutex_);
  entries_.try_emplace(id, Entry{now, ""}).first->second.site = std::move(site);
}

std::optional<RRefMetadata::Entry> RRefMetadata::find(const GlobalId& id) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? std::nullopt : std::optional<Entry>(found->second);
}

bool RRefMetadata::wantsSweep() const {
  MutexLock lock(mutex_);
  return entries_.size() >= nextSweep_;
}

void RRefMetadata::sweep(const Ids& alive, Clock::time_point now) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) {
    return now - entry.second.since > kGrace && !alive.contains(entry.first);
  });
  nextSweep_ = std::max(kFirstSweep, 2 * entries_.size());
}

size_t RRefMetadata::size() const {
  MutexLock lock(mutex_);
  return entries_.size();
}

} // namespace torchwire
