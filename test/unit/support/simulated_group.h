// Workers that join, leave and shut down over a store in memory, as the threads of a scheduler.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/membership/membership.h"
#include "backend/wire/frame.h"
#include "backend/wire/group_credentials.h"
#include "test/unit/support/scheduled_store.h"

namespace torchwire {

/// One worker of a simulation and what became of it.
struct SimulatedWorker {
  struct Settings {
    WorkerId id = 0;
    uint32_t worldSize = 0;
    std::string name; // empty: "w" and the id
    std::string secret;
    std::string torchVersion = "2.11.0";
    uint32_t protocolVersion = kProtocolVersion;
    uint32_t linkOptions = 0;
    std::chrono::nanoseconds start{0};
    std::chrono::milliseconds timeout{60000};
    ScheduledStore::Settings store;
    Membership::HasEnded hasEnded = [](const WorkerRecord&, bool) { return false; };
  };

  /// As a process starts: a new incarnation, which agrees on the key and joins.
  void start();

  Settings settings;
  Scheduler* scheduler = nullptr;
  MemoryStore* store = nullptr;
  std::unique_ptr<Membership> membership; // of the latest incarnation
  Roster roster; // what start() returned
  std::vector<Totals> totals; // for the body to fill in
  std::string error; // what ended the body; empty: it came to its end
  bool died = false;
  Clock::TimePoint end;
};

/// Of that rank, in a group of that size; 0: a dynamic one.
SimulatedWorker::Settings rankOf(uint32_t worldSize, WorkerId id);

/// Used by one thread; the bodies run one at a time.
class SimulatedGroup {
 public:
  using Body = std::function<void(SimulatedWorker&)>;

  explicit SimulatedGroup(unsigned seed, Scheduler::Limits limits = {});

  SimulatedWorker& add(const SimulatedWorker::Settings& settings, Body body);
  /// Adds ranks 0 to `count` - 1 of a static group.
  void addStatic(uint32_t count, const Body& body);

  /// Runs all bodies to their ends; returns who did not get there, see Scheduler::run().
  std::vector<std::string> run() {
    return scheduler.run();
  }

  /// Throws if a worker has ended before its time: what ShutdownMonitor finds out by its links.
  void throwIfOneIsGone() const;

  /// The errors of those that have not died, in the order of add().
  std::vector<std::string> errors() const;
  /// The roster as the store has it now.
  Roster storedRoster();

  Scheduler scheduler;
  MemoryStore store;
  std::vector<std::unique_ptr<SimulatedWorker>> workers;
};

/// The names, in alphabetical order.
std::vector<std::string> namesIn(const Roster& roster);

} // namespace torchwire
