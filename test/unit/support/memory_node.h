// Workers without a program on a memory network: what backend/node is, put together as the agent does it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/thread_pool.h"
#include "backend/base/timer.h"
#include "backend/call/call_table.h"
#include "backend/link/link_manager.h"
#include "backend/membership/local_store.h"
#include "backend/membership/membership.h"
#include "backend/node/own_calls.h"
#include "backend/node/peer_deaths.h"
#include "test/unit/support/memory_link.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// Processes that end when the test says so. Thread-safe.
class StandInProcesses final : public Processes {
 public:
  bool watch(Key key, const ProcessIdentity& process, Ended ended) override EXCLUDES(mutex_);
  void forget(Key key) override EXCLUDES(mutex_);
  void look(Key key) override EXCLUDES(mutex_);
  bool watches(Key key) const override EXCLUDES(mutex_);

  void end(Key key) EXCLUDES(mutex_);
  /// It runs another program from now on, which the next look finds.
  void replace(Key key) EXCLUDES(mutex_);

 private:
  Ended take(Key key) EXCLUDES(mutex_);

  mutable Mutex mutex_{LockRank::test};
  std::map<Key, Ended> watched_ GUARDED_BY(mutex_);
  std::map<Key, bool> replaced_ GUARDED_BY(mutex_);
};

/// The group's store, which its workers' threads use one at a time.
struct SharedStore {
  Mutex mutex{LockRank::test};
  LocalStore store GUARDED_BY(mutex);
  std::atomic<bool> isGone{false}; // every operation throws
};

/// What nodes of a test need in common.
struct NodeWorld {
  Notifier notifier;
  MemoryNetwork network{notifier, MemoryNetwork::Style::threaded};
  SharedStore store;
};

/// A worker of a dynamic group. Thread-safe.
class MemoryNode {
 public:
  /// Joins the group; meet() makes it known to others.
  MemoryNode(NodeWorld& world, WorkerId id);
  ~MemoryNode();
  MemoryNode(const MemoryNode&) = delete;
  MemoryNode& operator=(const MemoryNode&) = delete;

  const WorkerRecord& record() const {
    return membership_->self();
  }
  StandInProcesses& processes() {
    return processes_;
  }
  LinkManager& links() {
    return *links_;
  }
  OwnCalls& ownCalls() {
    return *ownCalls_;
  }
  PeerDeaths& deaths() {
    return *deaths_;
  }

  PeerState stateOf(const MemoryNode& peer) const;
  /// Sentences of the deaths of which it knows.
  std::vector<std::string> deathsHeard() const EXCLUDES(mutex_);
  /// Returns once all that had to be done about deaths has been.
  void settle();

 private:
  OwnCalls::Worker callsWorker();
  LinkManager::Events events();
  void onPeerGone(const WorkerRecord& peer, const Error& error) EXCLUDES(mutex_);

  NodeWorld& world_;
  LinkContext& context_;
  Timer timer_;
  CallTable calls_{timer_};
  RequestSender requests_{
      {calls_, /* maxBytesInFlight */ 0,
       [this](WorkerId to, OutgoingFrame request, Link::Sent sent) {
         links_->send(to, std::move(request), std::move(sent));
       },
       [](WorkerId) {}}};
  ThreadPool control_{4, "control"};
  ThreadPool deathThread_{1, "deaths"};
  StandInProcesses processes_;
  std::shared_ptr<LinkManager> links_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<OwnCalls> ownCalls_;
  std::unique_ptr<PeerDeaths> deaths_;
  mutable Mutex mutex_{LockRank::test};
  std::vector<std::string> heard_ GUARDED_BY(mutex_);
};

/// Makes all of them known to each other, and watched.
void meet(const std::vector<MemoryNode*>& nodes);

} // namespace torchwire
