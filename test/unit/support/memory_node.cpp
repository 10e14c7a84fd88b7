#include "test/unit/support/memory_node.h"

#include <future>
#include <stdexcept>
#include <utility>

#include "test/unit/support/memory_worker.h"

namespace torchwire {

using std::chrono::milliseconds;

// ---- processes ----------------------------------------------------------------------------------

bool StandInProcesses::watch(Key key, const ProcessIdentity&, Ended ended) {
  MutexLock lock(mutex_);
  watched_[key] = std::move(ended);
  return true;
}

void StandInProcesses::forget(Key key) {
  take(key);
}

void StandInProcesses::look(Key key) {
  {
    MutexLock lock(mutex_);
    if (!replaced_[key]) {
      return;
    }
  }
  if (const Ended ended = take(key)) {
    ended("runs another program");
  }
}

bool StandInProcesses::watches(Key key) const {
  MutexLock lock(mutex_);
  return watched_.contains(key);
}

void StandInProcesses::end(Key key) {
  if (const Ended ended = take(key)) {
    ended("has ended");
  }
}

void StandInProcesses::replace(Key key) {
  MutexLock lock(mutex_);
  replaced_[key] = true;
}

Processes::Ended StandInProcesses::take(Key key) {
  MutexLock lock(mutex_);
  const auto watched = watched_.find(key);
  if (watched == watched_.end()) {
    return {};
  }
  Ended ended = std::move(watched->second);
  watched_.erase(watched);
  return ended;
}

// ---- the store ----------------------------------------------------------------------------------

namespace {

/// A worker's access to the store.
class StoreAccess final : public KeyValueStore {
  template <typename Operation>
  auto locked(Operation operation) {
    if (shared_.isGone) {
      throw std::runtime_error("the store is gone");
    }
    MutexLock lock(shared_.mutex);
    return operation(shared_.store);
  }

 public:
  explicit StoreAccess(SharedStore& shared) : shared_(shared) {}

  Value compareSet(const std::string& key, const Value& expected, const Value& wanted) override {
    return locked([&](LocalStore& store) { return store.compareSet(key, expected, wanted); });
  }
  Value get(const std::string& key) override {
    return locked([&](LocalStore& store) { return store.get(key); });
  }
  void set(const std::string& key, const Value& value) override {
    locked([&](LocalStore& store) { store.set(key, value); });
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return locked([&](LocalStore& store) { return store.add(key, amount); });
  }
  bool check(const std::string& key) override {
    return locked([&](LocalStore& store) { return store.check(key); });
  }

 private:
  SharedStore& shared_;
};

} // namespace

// ---- a node -------------------------------------------------------------------------------------

MemoryNode::MemoryNode(NodeWorld& world, WorkerId id)
    : world_(world), context_(world.network.context(recordOf(id).address)) {
  links_ = std::make_shared<LinkManager>(context_, timer_, events(), quickLimits());
  membership_ = std::make_unique<Membership>(
      std::make_unique<StoreAccess>(world.store), recordOf(id), /* worldSize */ 0,
      milliseconds(10000));
  ownCalls_ = std::make_unique<OwnCalls>(callsWorker());
  deaths_ = std::make_unique<PeerDeaths>(PeerDeaths::Worker{
      *links_, *membership_, processes_, *ownCalls_, timer_, deathThread_, milliseconds(10000),
      /* isOpen */ true});
  membership_->agree({});
  const Roster roster = membership_->join(links_->listen());
  links_->setGroup(membership_->self(), roster.groupId);
  links_->acceptPeers();
}

MemoryNode::~MemoryNode() {
  timer_.stop();
  links_->leave(milliseconds(0));
  context_.join();
  calls_.failAll(Error(ErrorCode::shutDown, "the test is over"));
  deathThread_.join();
  control_.join();
}

OwnCalls::Worker MemoryNode::callsWorker() {
  return {
      requests_, [](Waiter& waiter) { waiter.await(nullptr); },
      [this](Task&& task) { return control_.run(std::move(task)); },
      [this](WorkerId caller, OutgoingFrame response) {
        links_->sendIfConnected(caller, std::move(response), [](const Error&) {});
      },
      [this](WorkerId caller, uint64_t incarnation) {
        return links_->isFormer(caller, incarnation);
      }};
}

LinkManager::Events MemoryNode::events() {
  LinkManager::Events events;
  events.frame = [this](WorkerId from, ReceivedFrame frame) {
    if (frame.header.kind == FrameKind::request) {
      ownCalls_->serve(from, std::move(frame));
    } else {
      const uint64_t callId = frame.header.callId;
      calls_.answer(callId, from, std::move(frame));
    }
  };
  events.peerLost =
      [this](WorkerId peer, const Error& error, const CallIds& received, const CallIds& unsent) {
        Task complete = calls_.takePeer(peer, error, received, unsent);
        deaths_->peerLost(peer, error);
        ownCalls_->callerLost(peer);
        return complete;
      };
  events.peerGone = [this](const WorkerRecord& peer, const Error& error) {
    control_.run([this, peer, error] { onPeerGone(peer, error); });
  };
  events.declaredDead = [this](const std::string& reason) { links_->endPart(reason); };
  events.linkBroken = [this](WorkerId peer, const Error&) { deaths_->linkBroken(peer); };
  return events;
}

void MemoryNode::onPeerGone(const WorkerRecord& peer, const Error& error) {
  links_->reclaimed(peer.id, peer.incarnation);
  if (error.code() == ErrorCode::workerDied) {
    deaths_->peerDied(peer, error);
    MutexLock lock(mutex_);
    heard_.push_back(error.message());
  }
  world_.notifier.notify();
}

PeerState MemoryNode::stateOf(const MemoryNode& peer) const {
  for (const PeerStatus& status : links_->status()) {
    if (status.record.id == peer.record().id) {
      return status.state;
    }
  }
  throw std::logic_error(record().describe() + " knows no " + peer.record().describe());
}

std::vector<std::string> MemoryNode::deathsHeard() const {
  MutexLock lock(mutex_);
  return heard_;
}

void MemoryNode::settle() {
  std::promise<void> done;
  deathThread_.run([&done] { done.set_value(); });
  done.get_future().wait();
}

void meet(const std::vector<MemoryNode*>& nodes) {
  for (MemoryNode* const node : nodes) {
    for (const MemoryNode* const peer : nodes) {
      if (peer != node) {
        node->links().addPeer(peer->record());
        node->deaths().watch(peer->record());
      }
    }
  }
}

} // namespace torchwire
