#include "test/unit/support/simulated_shutdown.h"

#include <stdexcept>

namespace torchwire {
namespace {

using std::chrono::milliseconds;

// How long an answer is waited for.
constexpr std::chrono::seconds kPatience{20};
// The longest that it takes a worker to notice that another is gone.
constexpr uint64_t kNoticed = 300; // milliseconds

WorkerId idOf(const SimulatedShutdown::Worker& worker) {
  return worker.simulated->settings.id;
}

uint64_t limitFor(
    const std::map<WorkerId, uint64_t>& limits, const SimulatedShutdown::Worker& worker) {
  const auto it = limits.find(idOf(worker));
  return it == limits.end() ? ScheduledStore::kNever : it->second;
}

} // namespace

SimulatedShutdown::SimulatedShutdown(unsigned seed, uint32_t size, Faults faults)
    : workers(size), faults_(std::move(faults)), group_(seed) {
  for (uint32_t id = 0; id < size; ++id) {
    SimulatedWorker::Settings settings;
    settings.id = static_cast<WorkerId>(id);
    settings.worldSize = size;
    Worker& worker = workers[id];
    settings.store.isGone = [this, &worker] {
      if (ready_ < workers.size()) {
        return false;
      }
      countOperation(worker);
      return !faults_.reachedBy.contains(idOf(worker)) &&
          group_.store.traffic().operations() - before_ >= faults_.storeAnswers;
    };
    worker.simulated = &group_.add(settings, [this, &worker](SimulatedWorker&) { live(worker); });
  }
}

void SimulatedShutdown::live(Worker& self) {
  self.simulated->start();
  if (++ready_ == workers.size()) {
    before_ = group_.store.traffic().operations();
    group_.scheduler.changed();
  }
  while (ready_ < workers.size()) {
    group_.scheduler.waitForChange("the others to join");
  }
  if (faults_.standsStill == idOf(self)) {
    return;
  }
  connect(self);
  group_.scheduler.sleepFor(milliseconds(group_.scheduler.draw(20)));
  shutDown(self);
  if (!self.isDead) {
    self.hasLeft = true;
    go(self);
  }
}

// As GroupEnd::meet and GroupEnd::join.
void SimulatedShutdown::shutDown(Worker& self) {
  std::optional<Totals> before;
  for (int round = 0;; ++round) {
    const std::string name = (round == 0 ? "reach" : "join") + std::to_string(round);
    const int64_t calls = round == 0 ? 0 : 1 << idOf(self);
    const Totals totals = self.simulated->membership->sum(
        name, {calls, calls}, [&] { throwIfOneHasLeft(self); }, [&] { return missing(self); });
    self.totals[name] = totals;
    if (before && totals.started == before->finished && totals.missing == before->missing) {
      break;
    }
    if (round > 0) {
      before = totals;
    }
  }
  self.simulated->membership->waitForOthersToFinish(*before, [&] { return missing(self); });
}

void SimulatedShutdown::connect(Worker& self) {
  self.stores = std::make_shared<PeerStores>(
      idOf(self),
      PeerStores::Links{
          [this, &self](WorkerId server, const std::vector<char>& request) {
            return ask(self, workers[static_cast<size_t>(server)], request);
          },
          [this, &self](WorkerId to, const std::vector<char>& request) {
            tell(self, workers[static_cast<size_t>(to)], request);
          },
          [this, &self] { return living(self); },
          [](WorkerId id) { return "worker 'w" + std::to_string(id) + "'"; }});
  self.simulated->membership->continueWith(self.stores);
}

std::vector<char> SimulatedShutdown::ask(
    Worker& self, Worker& server, const std::vector<char>& request) {
  group_.scheduler.yield();
  countOperation(self);
  if (faults_.standsStill == idOf(server)) {
    group_.scheduler.sleepFor(kPatience);
    throw std::runtime_error("no answer");
  }
  if (!server.isDead && server.answered++ >= limitFor(faults_.answers, server)) {
    die(server);
    if (group_.scheduler.draw(2) == 0) { // it has done it, only the answer did not come back
      server.stores->serve(idOf(self), request);
    }
  }
  if (server.isDead || server.hasLeft || !server.stores) {
    throw std::runtime_error("worker '" + server.simulated->settings.name + "' is gone");
  }
  std::vector<char> answer = server.stores->serve(idOf(self), request);
  group_.scheduler.yield();
  return answer;
}

void SimulatedShutdown::tell(Worker& self, Worker& to, const std::vector<char>& request) {
  const bool lost = faults_.losesAnnouncements && group_.scheduler.draw(2) == 0;
  if (!self.isDead && !to.isDead && !to.hasLeft && to.stores && !lost) {
    to.stores->serve(idOf(self), request);
  }
}

void SimulatedShutdown::go(Worker& self) {
  for (const Worker& other : workers) {
    self.knownAt[idOf(other)] =
        group_.scheduler.now() + milliseconds(group_.scheduler.draw(kNoticed));
  }
}

void SimulatedShutdown::die(Worker& self) {
  self.isDead = true;
  go(self);
}

// A worker that dies while another one runs ends here, at its own next step.
void SimulatedShutdown::countOperation(Worker& self) {
  if (!self.isDead && self.operations++ >= limitFor(faults_.operations, self)) {
    die(self);
  }
  if (self.isDead) {
    throw ScheduledStore::Died();
  }
}

bool SimulatedShutdown::isKnown(const Worker& observer, const Worker& gone) {
  return (gone.isDead || gone.hasLeft) && group_.scheduler.now() >= gone.knownAt.at(idOf(observer));
}

std::set<WorkerId> SimulatedShutdown::living(const Worker& self) {
  std::set<WorkerId> ids;
  for (const Worker& other : workers) {
    if (&other != &self && !isKnown(self, other)) {
      ids.insert(idOf(other));
    }
  }
  return ids;
}

std::set<WorkerId> SimulatedShutdown::missing(const Worker& self) {
  std::set<WorkerId> ids;
  for (const Worker& other : workers) {
    if (isKnown(self, other) && (other.isDead || self.stores->place().isPeer())) {
      ids.insert(idOf(other));
    }
  }
  return ids;
}

void SimulatedShutdown::throwIfOneHasLeft(const Worker& self) {
  if (self.isDead) {
    throw ScheduledStore::Died();
  }
  ScheduledClock clock(group_.scheduler);
  self.stores->expectAnswers(clock, kPatience);
  for (const Worker& other : workers) {
    if (other.hasLeft && isKnown(self, other) && !self.stores->place().isPeer()) {
      throw std::runtime_error("worker '" + other.simulated->settings.name + "' has left");
    }
  }
}

} // namespace torchwire
