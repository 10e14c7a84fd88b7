// Simulation: what must hold once all is healed and nothing happens any more.
#include <algorithm>
#include <map>

#include "backend/wire/store_entry.h"
#include "test/simulation/simulation.h"

namespace torchwire::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Longer than all that has a deadline, one after another.
constexpr seconds kPatience{1000};

std::string nameOf(const GlobalId& id) {
  return std::to_string(id.createdOn) + "/" + std::to_string(id.localId % 1000000);
}

bool isQuiet(PeerState state) {
  return state == PeerState::idle || state == PeerState::connected || isGone(state);
}

} // namespace

std::vector<Worker*> Simulation::living() const {
  std::vector<Worker*> all;
  for (const auto& worker : workers_) {
    if (worker) {
      all.push_back(worker.get());
    }
  }
  return all;
}

void Simulation::heal() {
  world_.note([] { return std::string("--- all is healed"); });
  healed_ = true;
  world_.oracle.heal();
  world_.network.heal();
  for (Worker* worker : living()) {
    worker->failStore({});
    if (world_.queue.isPaused(worker->owner())) {
      world_.queue.resume(worker->owner());
    }
  }
}

/// False where an invariant has been violated.
bool Simulation::drain(const char* when) {
  const Time limit = world_.queue.now() + kPatience;
  while (!world_.oracle.violation() && world_.queue.runNext()) {
    if (world_.queue.now() > limit) {
      world_.oracle.violate(Invariant::waits, std::string("something goes on for ever ") + when);
    }
  }
  return !world_.oracle.violation();
}

/// A worker that has been declared dead, and that nobody can tell of it: those who knew have ended, and the store, where it
/// would have found it itself, has failed.
bool Simulation::mayBeUnknown(const Worker& worker) const {
  return world_.oracle.process(worker.number()).missedIt;
}

void Simulation::callAll(bool mustSucceed) {
  for (Worker* from : living()) {
    for (Worker* to : living()) {
      const bool knows = from->knows(to->record().id);
      const bool isSkipped = mustSucceed ? mayBeUnknown(*from) || mayBeUnknown(*to) : !knows;
      if (from->number() == to->number() || isSkipped) {
        continue;
      }
      if (!knows) {
        world_.oracle.violate(
            Invariant::agreement, from->record().name + " does not know " + to->record().name);
        return;
      }
      from->call({to->record().id, -1, 0, {}}, [this, from, to, mustSucceed](const Error& error) {
        if (error && mustSucceed) {
          world_.oracle.violate(
              Invariant::agreement,
              from->record().name + " cannot call " + to->record().name +
                  ", and both live: " + error.message());
        }
      });
    }
    if (!mustSucceed) { // those who have ended are found out
      for (const WorkerId id : from->peers()) {
        if (!workers_[static_cast<size_t>(id)]) {
          from->call({id, -1, 0, {}});
        }
      }
    }
  }
}

void Simulation::letGo() {
  for (Worker* worker : living()) {
    worker->rrefs().dropAll();
    worker->contexts().closeAll();
  }
}

// ---- waiting ------------------------------------------------------------------------------------

void Simulation::checkWaits() {
  for (const std::string& call : world_.oracle.pending()) {
    world_.oracle.violate(Invariant::waits, call + " has not ended");
  }
  std::map<std::pair<Slot, Slot>, int> links;
  for (const Network::LinkView& side : world_.network.openSides()) {
    if (side.half || ++links[{side.at, side.to}] > 1) {
      world_.oracle.violate(
          Invariant::waits,
          "w" + std::to_string(side.at) + " has a link too many to w" + std::to_string(side.to));
    }
  }
  for (Worker* worker : living()) {
    const std::string& name = worker->record().name;
    if (worker->pendingCalls() > 0) {
      world_.oracle.violate(Invariant::waits, name + " has calls under way");
    }
    if (worker->pendingBooks() != 0) {
      world_.oracle.violate(Invariant::waits, name + " has requests that are still repeated");
    }
    if (worker->pendingSends() != 0) {
      world_.oracle.violate(Invariant::waits, name + " was not told what became of a frame");
    }
    for (const PeerStatus& peer : worker->status()) {
      if (!isQuiet(peer.state)) {
        world_.oracle.violate(
            Invariant::waits,
            name + " is " + torchwire::nameOf(peer.state) + " to " + peer.record.name);
      }
    }
  }
}

// ---- agreement ----------------------------------------------------------------------------------

void Simulation::checkAgreement() {
  std::vector<uint64_t> incarnations;
  for (Worker* worker : living()) {
    incarnations.push_back(worker->record().incarnation);
  }
  for (Worker* worker : living()) {
    for (const PeerStatus& peer : worker->status()) {
      const bool lives =
          std::count(incarnations.begin(), incarnations.end(), peer.record.incarnation) > 0;
      if (lives == isGone(peer.state)) {
        world_.oracle.violate(
            Invariant::agreement,
            worker->record().name + " takes " + peer.record.describe() + " for " +
                torchwire::nameOf(peer.state) + ", which " + (lives ? "lives" : "has ended"));
      }
    }
    notRemoved_.insert(worker->notRemoved().begin(), worker->notRemoved().end());
  }
  checkRoster();
}

void Simulation::checkRoster() {
  const std::string name = "torchwire/roster";
  const auto bytes = StoreEntry::read(nullptr, name, world_.store.get(name)).value;
  std::set<uint64_t> listed;
  for (const WorkerRecord& worker : Roster::decode({bytes.begin(), bytes.end()}).workers) {
    listed.insert(worker.incarnation);
  }
  const auto all = living();
  for (const Worker* worker : all) {
    if (listed.erase(worker->record().incarnation) == 0 && !mayBeUnknown(*worker)) {
      world_.oracle.violate(Invariant::agreement, "a worker that lives is not on the list");
    }
  }
  for (const uint64_t incarnation : listed) {
    // The store failed when it was to be taken off, or nobody lives who has ever heard of it.
    const bool isKnown = std::any_of(all.begin(), all.end(), [&](const Worker* worker) {
      return worker->hasKnown(incarnation);
    });
    if (isKnown && !notRemoved_.contains(incarnation)) {
      world_.oracle.violate(Invariant::agreement, "a worker that has ended is on the list");
    }
  }
}

// ---- forks and contexts -------------------------------------------------------------------------

void Simulation::checkForks() {
  const std::set<GlobalId> lost = world_.oracle.lostForks();
  std::map<uint64_t, std::set<GlobalId>> used; // by the owner's incarnation
  for (Worker* worker : living()) {
    for (const auto& [fork, user] : worker->rrefs().users()) {
      used[user.ownersIncarnation].insert(fork);
    }
  }
  for (Worker* owner : living()) {
    const std::set<GlobalId>& users = used[owner->record().incarnation];
    std::set<GlobalId> forks;
    for (const auto& [rref, all] : owner->rrefs().forks()) {
      forks.insert(all.begin(), all.end());
    }
    for (const GlobalId& fork : forks) {
      if (!users.contains(fork) && !lost.contains(fork)) {
        world_.oracle.violate(
            Invariant::reclaimed,
            owner->record().name + " keeps fork " + nameOf(fork) + ", which nobody has");
      }
    }
    for (const GlobalId& fork : users) {
      if (!forks.contains(fork)) {
        world_.oracle.violate(
            Invariant::reclaimed,
            owner->record().name + " has lost fork " + nameOf(fork) + ", which is in use");
      }
    }
  }
}

void Simulation::checkNothingIsLeft() {
  const std::set<GlobalId> lost = world_.oracle.lostForks();
  for (Worker* worker : living()) {
    const std::string& name = worker->record().name;
    const RRefBook& rrefs = worker->rrefs();
    if (lost.empty() &&
        (!rrefs.users().empty() || !rrefs.children().empty() || !rrefs.forks().empty() ||
         !rrefs.owned().empty() || !rrefs.ledger().running().empty())) {
      world_.oracle.violate(
          Invariant::reclaimed,
          name + " has " + std::to_string(rrefs.users().size()) + " users, " +
              std::to_string(rrefs.children().size()) + " children, " +
              std::to_string(rrefs.owned().size()) + " RRefs and " +
              std::to_string(rrefs.forks().size()) + " of them with forks left");
    }
    unreached_.insert(worker->contexts().unreached().begin(), worker->contexts().unreached().end());
  }
  for (Worker* worker : living()) {
    for (const auto& [context, known] : worker->contexts().contexts()) {
      if (!unreached_.contains({context, worker->record().id})) {
        world_.oracle.violate(
            Invariant::reclaimed,
            worker->record().name + " keeps a context of w" + std::to_string(creatorOf(context)));
      }
    }
  }
}

} // namespace torchwire::simulation
