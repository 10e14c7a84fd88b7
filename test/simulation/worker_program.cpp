// Worker: what its node works with and calls, and what it does to the store.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/wire/deaths.h"
#include "backend/wire/store_entry.h"
#include "test/simulation/bug.h"
#include "test/simulation/worker.h"

namespace torchwire::simulation {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Node::Settings Worker::nodeSettings() {
  Node::Settings settings;
  settings.id = record_.id;
  settings.name = record_.name;
  settings.isStatic = false;
  settings.isOpen = true;
  settings.firstCallId = planted(Bug::sameCallIds) ? 1 : (random_.next() >> 2U) + 1;
  settings.limits.sessionTimeout = world_.settings.sessionTimeout;
  settings.limits.sessionBytes = world_.settings.sessionBytes;
  return settings;
}

Node::Parts Worker::nodeParts() {
  return {
      *this, timer_, trace_,
      [this](Task&& task) {
        later(microseconds(random_.below(300)), std::move(task));
        return true;
      },
      [this](Task&& task) { return runDeathTask(std::move(task)); }};
}

/// One after another.
bool Worker::runDeathTask(Task&& task) {
  deathTasks_ = std::max(deathTasks_, world_.queue.now() + microseconds(random_.below(300)));
  world_.queue.at(deathTasks_, owner_, [this, task = std::move(task)]() mutable {
    task();
    endIfDeclaredDead(); // when all its peers are gone, none may tell it
  });
  return true;
}

RetriedRequests::Worker Worker::booksWorker() {
  return {
      timer_, nodeParts().control,
      [this](WorkerId worker) { return node_.links()->incarnationOf(worker); },
      [this] { return node_.isClosed(); }};
}

bool Worker::hasEnded(const WorkerRecord& worker, bool asksHost) const {
  return (asksHost || processes_.sees(worker.process)) &&
      world_.oracle.hasEnded(worker.incarnation);
}

// ---- requests and responses ---------------------------------------------------------------------

bool Worker::serveOwn(Task&& task) {
  later(microseconds(random_.below(100)), std::move(task));
  return true;
}

void Worker::dropResponse(WorkerId from, ReceivedFrame response) {
  world_.note([&] {
    return record_.name + ": drops w" + std::to_string(from) + "'s answer to call " +
        std::to_string(response.header.callId);
  });
}

void Worker::await(Waiter& /*waiter*/) {
  throw std::logic_error("nothing can wait here: there is one thread");
}

// ---- peers --------------------------------------------------------------------------------------

std::optional<Refusal> Worker::admit(const WorkerRecord& worker) {
  learn(worker);
  rrefs_.forgetWorker(worker.id);
  later(Duration(0), contexts_.peerJoined(worker.id));
  return std::nullopt;
}

void Worker::peerJoined(const WorkerRecord& peer) {
  world_.note([&] { return record_.name + ": " + peer.name + " has come"; });
}

void Worker::peerLost(WorkerId peer, const Error& error) {
  world_.note([&] { return record_.name + ": " + error.message(); });
  if (error.code() == ErrorCode::peerLeft) {
    known_.erase(peer);
  }
}

void Worker::peerGone(const WorkerRecord& peer, const Error& error) {
  world_.note([&] { return record_.name + ": reclaims w" + std::to_string(peer.id); });
  if (error.code() == ErrorCode::workerDied) {
    world_.oracle.toldDead(record_.name, peer.incarnation);
  }
  rrefs_.workerGone(peer.id, error);
  contexts_.peerGone(peer.id);
  endIfDeclaredDead();
}

std::string Worker::describe(WorkerId worker) const {
  return "worker '" + nameOf(worker) + "'";
}

std::string Worker::nameOf(WorkerId worker) const {
  return "w" + std::to_string(worker);
}

milliseconds Worker::storeTimeout() const {
  return milliseconds(60000);
}

// ---- the store ----------------------------------------------------------------------------------

StoreNotes Worker::storeNotes() {
  return {[this] { noteStoreFailure(); }, [this](const std::string& key) { noteDeaths(key); }};
}

/// What it was about to do with the store is not known here: perhaps to take one of the dead off the list.
void Worker::noteStoreFailure() {
  world_.oracle.storeFailed(number_);
  for (const PeerStatus& peer : status()) {
    if (isGone(peer.state)) {
      notRemoved_.insert(peer.record.incarnation);
    }
  }
}

/// Of the list of the group's dead.
void Worker::noteDeaths(const std::string& key) {
  if (!key.starts_with("torchwire/deaths/")) {
    return;
  }
  std::vector<Slot> others; // that live, as far as it knows
  for (const PeerStatus& peer : status()) {
    if (!isGone(peer.state)) {
      others.push_back(peer.record.id);
    }
  }
  const auto bytes = StoreEntry::read(nullptr, key, world_.store.get(key)).value;
  for (const Death& death : Deaths::decode({bytes.begin(), bytes.end()}).all) {
    world_.oracle.declaredDead(death.incarnation, {number_, others});
  }
}

} // namespace torchwire::simulation
