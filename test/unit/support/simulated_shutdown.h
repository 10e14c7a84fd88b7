// A static group whose workers serve stores to each other, and that shuts down as Agent does.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/membership/peer_stores.h"
#include "test/unit/support/simulated_group.h"

namespace torchwire {

/// Workers that join over a store, which may then be gone, and shut down together; any of them may die. Who has died or left
/// is known to each of the others at a time of its own. Used as SimulatedGroup.
class SimulatedShutdown {
 public:
  struct Faults {
    /// How many operations of the shutdown, of all workers, the rendezvous store answers.
    uint64_t storeAnswers = ScheduledStore::kNever;
    /// Who still reaches it then.
    std::set<WorkerId> reachedBy = {};
    /// How many requests a worker answers before it dies.
    std::map<WorkerId, uint64_t> answers = {};
    /// How many operations of the shutdown a worker does in the rendezvous store, or asks of others, before it dies.
    std::map<WorkerId, uint64_t> operations = {};
    /// Who joins, and then neither does anything nor answers.
    std::optional<WorkerId> standsStill = {};
    bool losesAnnouncements = false; // every other one
  };

  SimulatedShutdown(unsigned seed, uint32_t size, Faults faults);

  /// Runs all; returns who did not get to an end, see Scheduler::run().
  std::vector<std::string> run() {
    return group_.run();
  }

  struct Worker {
    SimulatedWorker* simulated = nullptr;
    std::shared_ptr<PeerStores> stores; // from the start of its shutdown on
    std::map<std::string, Totals> totals; // of each round
    uint64_t answered = 0, operations = 0;
    bool isDead = false, hasLeft = false;
    std::map<WorkerId, Clock::TimePoint> knownAt; // to whom, that it is gone
  };
  std::vector<Worker> workers;

 private:
  void live(Worker& self);
  void shutDown(Worker& self);
  void connect(Worker& self);
  std::vector<char> ask(Worker& self, Worker& server, const std::vector<char>& request);
  void tell(Worker& self, Worker& to, const std::vector<char>& request);
  void go(Worker& self);
  void die(Worker& self);
  void countOperation(Worker& self);
  bool isKnown(const Worker& observer, const Worker& gone);
  std::set<WorkerId> living(const Worker& self);
  std::set<WorkerId> missing(const Worker& self);
  void throwIfOneHasLeft(const Worker& self);

  const Faults faults_;
  SimulatedGroup group_;
  size_t ready_ = 0; // workers that have joined
  uint64_t before_ = 0; // the store's operations until all had
};

} // namespace torchwire
