#include "autograd/pass/context_registry.h"

#include <algorithm>
#include <iterator>

namespace torchwire {

/// Telling workers of one release: done when the last of them has answered. Thread-safe.
class ContextRegistry::Round : public std::enable_shared_from_this<Round> {
 public:
  Round(std::shared_ptr<ContextRegistry> registry, ContextId id, std::vector<Done> done)
      : registry_(std::move(registry)), id_(id), done_(std::move(done)) {}

  void tell(const Workers& workers) {
    Workers fresh;
    {
      MutexLock lock(mutex_);
      std::set_difference(
          workers.begin(), workers.end(), told_.begin(), told_.end(),
          std::inserter(fresh, fresh.end()));
      told_.insert(fresh.begin(), fresh.end());
      pending_ += fresh.size() +
          1; // one for this very function, so that done() is not called before its end
    }
    for (const WorkerId worker : fresh) {
      registry_->outside_.tell(
          worker, id_, [self = shared_from_this()](bool confirmed) { self->answered(confirmed); });
    }
    ended();
  }

 private:
  void answered(bool confirmed) {
    bool first = false;
    if (!confirmed) {
      MutexLock lock(mutex_);
      first = std::exchange(everywhere_, false);
    }
    if (first) { // it may have gone with the names of further workers, so everybody else is told
      tell(registry_->outside_.peers());
    }
    ended();
  }

  void ended() {
    std::vector<Done> done;
    bool everywhere = true;
    {
      MutexLock lock(mutex_);
      if (--pending_ > 0) {
        return;
      }
      done.swap(done_);
      everywhere = everywhere_;
    }
    for (const Done& one : done) {
      one(everywhere);
    }
  }

  const std::shared_ptr<ContextRegistry> registry_;
  const ContextId id_;
  Mutex mutex_{LockRank::contextRound};
  Workers told_ GUARDED_BY(mutex_);
  size_t pending_ GUARDED_BY(mutex_) = 0;
  bool everywhere_ GUARDED_BY(mutex_) = true; // as far as is known
  std::vector<Done> done_ GUARDED_BY(mutex_);
};

// ---- open contexts ------------------------------------------------------------------------------

ContextRegistry::Open& ContextRegistry::open(ContextId id) {
  const auto [entry, isNew] = open_.try_emplace(id);
  if (isNew) {
    entry->second.since = Clock::now();
    entry->second.generation = generation_;
    entry->second.ending = isReleased(id) || gone_.contains(creatorOf(id));
  }
  return entry->second;
}

void ContextRegistry::opened(ContextId id) {
  MutexLock lock(mutex_);
  open(id);
}

void ContextRegistry::callBegins(ContextId id) {
  MutexLock lock(mutex_);
  ++open(id).calls;
}

void ContextRegistry::callEnds(ContextId id) {
  Closing closing{};
  {
    MutexLock lock(mutex_);
    Open& entry = open(id);
    if (--entry.calls > 0 || !entry.ending) {
      return;
    }
    closing = takeOut(id);
  }
  close(std::move(closing));
}

void ContextRegistry::ownCallEnded(ContextId id, WorkerId callee) {
  Closing closing{};
  {
    MutexLock lock(mutex_);
    if (!isReleased(id)) {
      return;
    }
    Open& entry = open(id);
    entry.alsoTell.insert(callee);
    if (entry.calls > 0) {
      return;
    }
    closing = takeOut(id);
  }
  close(std::move(closing));
}

void ContextRegistry::ownCallUnanswered(ContextId id, WorkerId callee) {
  MutexLock lock(mutex_);
  const auto released = released_.find(id);
  Workers& unanswered =
      released == released_.end() ? open(id).unanswered : released->second.unanswered;
  unanswered.insert(callee);
}

// ---- releases -----------------------------------------------------------------------------------

void ContextRegistry::release(ContextId id, std::optional<WorkerId> from, Done done) {
  Closing closing{};
  {
    MutexLock lock(mutex_);
    remember(id);
    const auto entry = open_.find(id);
    if (entry != open_.end() && entry->second.calls > 0) {
      // The calls go on as parts of the context, and may need it. Whoever asks has to wait for them.
      entry->second.ending = true;
      entry->second.waiting.push_back(std::move(done));
      return;
    }
    closing = takeOut(id);
    closing.done.push_back(std::move(done));
    if (from) {
      closing.tell.erase(*from);
    }
  }
  close(std::move(closing));
}

ContextRegistry::Closing ContextRegistry::takeOut(ContextId id) {
  Closing closing{};
  closing.id = id;
  uint64_t generation = generation_;
  if (auto node = open_.extract(id)) {
    generation = node.mapped().generation;
    closing.tell = std::move(node.mapped().alsoTell);
    closing.done = std::move(node.mapped().waiting);
    if (const auto released = released_.find(id); released != released_.end()) {
      released->second.unanswered.merge(node.mapped().unanswered);
    }
  }
  if (auto taken = outside_.take(id)) {
    closing.wasThere = true;
    closing.tell.insert(taken->known.begin(), taken->known.end());
    closing.content = std::move(taken->content);
  }
  closing.tellAll = knowsReplaced(closing.tell, generation);
  return closing;
}

/// Whether one of these has come since.
bool ContextRegistry::knowsReplaced(const Workers& workers, uint64_t generation) const {
  return std::any_of(workers.begin(), workers.end(), [&](WorkerId worker) REQUIRES(mutex_) {
    const auto came = came_.find(worker);
    return came != came_.end() && came->second > generation;
  });
}

void ContextRegistry::close(Closing closing) {
  if (closing.wasThere) {
    outside_.gone(closing.id);
    closing.content.reset();
  }
  if (closing.tellAll) {
    closing.tell.merge(outside_.peers());
  }
  std::make_shared<Round>(shared_from_this(), closing.id, std::move(closing.done))
      ->tell(closing.tell);
}

std::vector<ContextRegistry::Closing> ContextRegistry::takeOutAllOf(WorkerId creator) {
  std::vector<ContextId> orphans;
  for (auto& [id, entry] : open_) {
    if (creatorOf(id) == creator) {
      entry.ending = true;
      if (entry.calls == 0) {
        orphans.push_back(id);
      }
    }
  }
  std::vector<Closing> closings;
  for (const ContextId id : orphans) {
    remember(id);
    closings.push_back(takeOut(id));
    closings.back().tell.erase(creator);
  }
  return closings;
}

std::function<void()> ContextRegistry::closeLater(std::vector<Closing> closings) {
  return [registry = shared_from_this(),
          all = std::make_shared<std::vector<Closing>>(std::move(closings))] {
    for (Closing& closing : *all) {
      registry->close(std::move(closing));
    }
  };
}

/// The released contexts in which this worker may have run a call after the release.
std::vector<ContextRegistry::Closing> ContextRegistry::unansweredBy(WorkerId callee) {
  std::vector<Closing> closings;
  for (auto& [id, released] : released_) {
    if (released.unanswered.erase(callee) > 0) {
      Closing closing{};
      closing.id = id;
      closing.tellAll = true;
      closings.push_back(std::move(closing));
    }
  }
  return closings;
}

std::function<void()> ContextRegistry::workerGone(WorkerId worker) {
  MutexLock lock(mutex_);
  gone_.insert(worker);
  std::vector<Closing> closings = takeOutAllOf(worker);
  std::ranges::move(unansweredBy(worker), std::back_inserter(closings));
  return closeLater(std::move(closings));
}

std::function<void()> ContextRegistry::workerIsNew(WorkerId worker) {
  MutexLock lock(mutex_);
  auto rest = closeLater(takeOutAllOf(worker));
  came_[worker] = ++generation_;
  gone_.erase(worker);
  std::erase_if(released_, [&](const auto& entry) { return creatorOf(entry.first) == worker; });
  return rest;
}

// ---- what has been released ---------------------------------------------------------------------

bool ContextRegistry::isReleased(ContextId id) const {
  return released_.count(id) > 0;
}

void ContextRegistry::remember(ContextId id) {
  const auto now = Clock::now();
  // Here and not by a timer: nothing is lost while nothing is released, and an idle worker should sleep.
  while (!oldest_.empty() &&
         (oldest_.size() >= limits_.count || oldest_.front().first + limits_.memory < now)) {
    const auto [when, oldest] = oldest_.front();
    oldest_.pop_front();
    const auto entry = released_.find(oldest);
    if (entry != released_.end() &&
        entry->second.since == when) { // else it has been released again since
      released_.erase(entry);
    }
  }
  released_[id].since = now;
  oldest_.emplace_back(now, id);
}

std::optional<ContextRegistry::Status> ContextRegistry::status(ContextId id) const {
  MutexLock lock(mutex_);
  const auto entry = open_.find(id);
  if (entry == open_.end()) {
    return std::nullopt;
  }
  return Status{Clock::now() - entry->second.since, entry->second.calls, entry->second.ending};
}

size_t ContextRegistry::remembered() const {
  MutexLock lock(mutex_);
  return released_.size();
}

} // namespace torchwire
