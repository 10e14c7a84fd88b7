#include "rref/ledger/fork_ledger.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace torchwire {
namespace {

constexpr WorkerId kNoHolder = -1;

std::shared_ptr<const Error> whyDropped() {
  static const auto why = std::make_shared<const Error>(
      ErrorCode::cancelled, "the RRef is not at its owner any more: its last user has dropped it");
  return why;
}

} // namespace

ForkLedger::ForkLedger(ForkTable& table, std::function<Clock::time_point()> now)
    : table_(table), now_(std::move(now)) {}

// ---- creation -----------------------------------------------------------------------------------

bool ForkLedger::begin(const GlobalId& rref, const GlobalId& fork, WorkerId holder, Answer answer) {
  {
    MutexLock lock(mutex_);
    const auto known = creations_.find(fork);
    const auto gone = deleted_.find(fork);
    const bool goneAfterwards = gone != deleted_.end() && gone->second.created;
    if (known != creations_.end() && !known->second.finished) {
      known->second.waiting.push_back(std::move(answer));
      return false;
    }
    if (known == creations_.end() && !goneAfterwards) {
      const bool deleted = gone != deleted_.end() || gone_.contains(holder);
      Creation creation{rref, holder, false, deleted, {}};
      creation.waiting.push_back(std::move(answer));
      creations_.emplace(fork, std::move(creation));
      return true;
    }
  }
  answer();
  return false;
}

ForkLedger::Released ForkLedger::entered(const GlobalId& fork) {
  MutexLock lock(mutex_);
  const auto found = creations_.find(fork);
  if (found == creations_.end() || found->second.rref == fork) {
    return nullptr; // a worker's creation on itself: the caller is the owner, and has no fork
  }
  const Creation& creation = found->second;
  table_.add(creation.rref, fork);
  entered_.insert(creation.rref);
  const Released early = unkeep(creation.rref); // nothing: the creator's fork keeps it
  if (creation.deleted) {
    Released released = table_.remove(creation.rref, fork);
    if (released) {
      noteEnd(creation.rref, creation.holder);
    }
    return released;
  }
  holders_.emplace(fork, Entry{creation.rref, creation.holder});
  return nullptr;
}

void ForkLedger::finished(const GlobalId& fork) {
  std::vector<Answer> waiting;
  Released early; // of a creation that has come to nothing
  {
    MutexLock lock(mutex_);
    const auto found = creations_.find(fork);
    if (found == creations_.end()) {
      return;
    }
    entered_.erase(found->second.rref);
    early = unkeep(found->second.rref);
    waiting.swap(found->second.waiting);
    found->second.finished = true;
    const bool onItself = found->second.rref == fork; // libtorch ends it without a message
    if (found->second.deleted || onItself) {
      creations_.erase(found);
      remember(fork, true);
    }
  }
  for (const Answer& answer : waiting) {
    answer();
  }
}

// ---- forks --------------------------------------------------------------------------------------

void ForkLedger::add(const GlobalId& rref, const GlobalId& fork, WorkerId holder) {
  MutexLock lock(mutex_);
  if (!deleted_.contains(fork) && !gone_.contains(holder)) {
    table_.add(rref, fork);
    holders_.emplace(fork, Entry{rref, holder});
  }
}

ForkLedger::Released ForkLedger::remove(const GlobalId& rref, const GlobalId& fork) {
  MutexLock lock(mutex_);
  return removeFork(rref, fork, kNoHolder);
}

ForkLedger::Released ForkLedger::removeFork(
    const GlobalId& rref, const GlobalId& fork, WorkerId holder) {
  bool created = false;
  const auto found = creations_.find(fork);
  if (found != creations_.end()) {
    created = found->second.finished;
    if (created) {
      creations_.erase(found);
    } else {
      found->second.deleted = true;
    }
  }
  remember(fork, created);
  holders_.erase(fork);
  keep(rref); // this may come between libtorch's entry of an early RRef and keepUntilEntered()
  Released released = table_.remove(rref, fork);
  if (released) {
    noteEnd(rref, holder);
  }
  return released;
}

// ---- workers that are gone -----------------------------------------------------------------------

std::vector<GlobalId> ForkLedger::workerGone(WorkerId worker, Error why) {
  MutexLock lock(mutex_);
  gone_[worker] = std::make_shared<const Error>(std::move(why));
  return keptFor(worker);
}

std::vector<ForkLedger::Released> ForkLedger::reclaim(WorkerId worker) {
  std::vector<Released> released;
  MutexLock lock(mutex_);
  std::vector<std::pair<GlobalId, GlobalId>> forks; // and their RRefs
  for (const auto& [fork, entry] : holders_) {
    if (entry.holder == worker) {
      forks.emplace_back(entry.rref, fork);
    }
  }
  for (auto& [fork, creation] : creations_) {
    if (creation.holder == worker && !creation.finished && !holders_.contains(fork)) {
      creation.deleted = true; // it has yet to be entered
    }
  }
  for (const auto& [rref, fork] : forks) {
    released.push_back(removeFork(rref, fork, worker));
  }
  for (const GlobalId& rref : keptFor(worker)) {
    released.push_back(unkeep(rref));
  }
  return released;
}

ForkLedger::Released ForkLedger::reclaim(
    const GlobalId& rref, const GlobalId& fork, WorkerId holder) {
  MutexLock lock(mutex_);
  return removeFork(rref, fork, holder);
}

/// The RRef has gone with this worker's fork. It may still be asked for: by someone to whom a worker that is gone had handed
/// it on, or by a request that its sender's own delete has overtaken.
void ForkLedger::noteEnd(const GlobalId& rref, WorkerId lastHolder) {
  const auto gone = gone_.find(lastHolder);
  if (!ended_.emplace(rref, gone == gone_.end() ? whyDropped() : gone->second).second) {
    return;
  }
  oldestEnded_.push_back(rref);
  if (ended_.size() > kMaxRemembered) {
    ended_.erase(oldestEnded_.front());
    oldestEnded_.pop_front();
  }
}

bool ForkLedger::runs(const GlobalId& rref) const {
  return std::any_of(creations_.begin(), creations_.end(), [&](const auto& entry) {
    return !entry.second.finished && entry.second.rref == rref;
  });
}

Error ForkLedger::whyNeverLocked(const GlobalId& rref) const {
  const auto ended = ended_.find(rref);
  if (ended != ended_.end()) {
    return *ended->second;
  }
  const auto gone = gone_.find(rref.createdOn);
  return gone == gone_.end() || runs(rref) ? Error() : *gone->second;
}

Error ForkLedger::whyNever(const GlobalId& rref) const {
  MutexLock lock(mutex_);
  return whyNeverLocked(rref);
}

/// The RRefs that are kept for a creation of the worker's that has not come.
std::vector<GlobalId> ForkLedger::keptFor(WorkerId worker) const {
  std::unordered_set<GlobalId, GlobalIdHash> running;
  for (const auto& [fork, creation] : creations_) {
    if (!creation.finished) {
      running.insert(creation.rref);
    }
  }
  std::vector<GlobalId> kept;
  std::copy_if(kept_.begin(), kept_.end(), std::back_inserter(kept), [&](const GlobalId& rref) {
    return rref.createdOn == worker && !running.contains(rref);
  });
  return kept;
}

bool ForkLedger::isGone(WorkerId worker) const {
  MutexLock lock(mutex_);
  return gone_.contains(worker);
}

bool ForkLedger::hasGone() const {
  MutexLock lock(mutex_);
  return !gone_.empty();
}

// ---- RRefs that have come before their creation --------------------------------------------------

Error ForkLedger::keepUntilEntered(const GlobalId& rref) {
  MutexLock lock(mutex_);
  if (entered_.contains(rref)) { // this worker may pass on what its users have dropped already
    return {};
  }
  Error why = whyNeverLocked(rref);
  if (!why) {
    keep(rref);
  }
  return why;
}

ForkLedger::Released ForkLedger::dropUnforked(const GlobalId& rref) {
  MutexLock lock(mutex_);
  if (kept_.contains(rref)) {
    return nullptr;
  }
  table_.add(rref, rref);
  return table_.remove(rref, rref);
}

// The RRef's own id stands for the fork that keeps it, as it does in libtorch for a worker's call to itself.
void ForkLedger::keep(const GlobalId& rref) {
  if (!entered_.contains(rref) && table_.awaitsValue(rref) && !whyNeverLocked(rref) &&
      kept_.insert(rref).second) {
    table_.add(rref, rref);
  }
}

ForkLedger::Released ForkLedger::unkeep(const GlobalId& rref) {
  return kept_.erase(rref) == 0 ? nullptr : table_.remove(rref, rref);
}

// ---- memory -------------------------------------------------------------------------------------

void ForkLedger::remember(const GlobalId& fork, bool created) {
  const auto now = now_();
  const auto [entry, added] = deleted_.try_emplace(fork, Deleted{created, now});
  if (added) {
    oldestDeleted_.push_back(fork);
  } else {
    entry->second.created |= created;
  }
  forgetOld();
}

void ForkLedger::forgetOld() {
  const auto since = now_() - kMemory;
  while (!oldestDeleted_.empty()) {
    const auto oldest = deleted_.find(oldestDeleted_.front());
    if (deleted_.size() <= kMaxRemembered && oldest->second.when >= since) {
      return;
    }
    deleted_.erase(oldest);
    oldestDeleted_.pop_front();
  }
}

void ForkLedger::forgetWorker(WorkerId worker) {
  MutexLock lock(mutex_);
  gone_.erase(worker);
  std::erase_if(deleted_, [&](const auto& entry) { return entry.first.createdOn == worker; });
  std::erase_if(oldestDeleted_, [&](const GlobalId& fork) { return fork.createdOn == worker; });
  std::erase_if(creations_, [&](const auto& entry) {
    return entry.second.finished && entry.first.createdOn == worker;
  });
  std::erase_if(ended_, [&](const auto& entry) { return entry.first.createdOn == worker; });
  std::erase_if(oldestEnded_, [&](const GlobalId& rref) { return rref.createdOn == worker; });
}

// ---- questions ----------------------------------------------------------------------------------

std::unordered_map<GlobalId, ForkLedger::Entry, GlobalIdHash> ForkLedger::holders() const {
  MutexLock lock(mutex_);
  return holders_;
}

std::vector<ForkLedger::Entry> ForkLedger::running() const {
  MutexLock lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [fork, creation] : creations_) {
    if (!creation.finished) {
      entries.push_back({creation.rref, creation.holder});
    }
  }
  return entries;
}

size_t ForkLedger::remembered() const {
  MutexLock lock(mutex_);
  return deleted_.size();
}

} // namespace torchwire
