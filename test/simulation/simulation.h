// One run: workers that carry out a plan, are healed, and are looked at.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "test/simulation/bug.h"
#include "test/simulation/plan.h"
#include "test/simulation/worker.h"
#include "test/simulation/world.h"

namespace torchwire::simulation {

/// What was done in a run, or in several. A value.
struct Tally {
  uint64_t runs = 0;
  uint64_t calls = 0; // requests that the program and the books have made
  uint64_t failed = 0; // of these
  uint64_t faults = 0; // that met something
  uint64_t steps = 0;
  std::chrono::milliseconds time{0}; // on the simulation's clock
  uint64_t lostForks = 0;
  uint64_t declaredDead = 0; // processes that had not ended

  Tally& operator+=(const Tally& other);
  std::string describe() const;
};

struct Outcome {
  std::optional<Violation> violation;
  Tally tally;
};

/// Not thread-safe.
class Simulation {
 public:
  Simulation(const Plan& plan, Bug bug, std::function<void(const std::string&)> trace = nullptr);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Once.
  Outcome run();

 private:
  using Workers = std::vector<std::unique_ptr<Worker>>;

  // ---- steps.cpp: what a plan says
  void take(const Step& step);
  void operate(Worker& worker, const Step& step);
  bool disturb(const Step& step);
  bool cut(const Step& step);
  void block(Slot from, Slot to, std::chrono::milliseconds time);
  bool slowDown(const Step& step);
  bool isolate(const Step& step);
  bool pause(const Step& step);
  bool kill(Slot slot);
  bool start(Slot slot);
  bool leave(Slot slot);
  void end(Slot slot, bool inOrder);
  void plantBugs(const Step& step);

  // ---- final_checks.cpp: what must hold in the end
  bool drain(const char* when);
  void heal();
  void callAll(bool mustSucceed);
  void letGo();
  bool mayBeUnknown(const Worker& worker) const;
  void checkWaits();
  void checkAgreement();
  void checkRoster();
  void checkForks();
  void checkNothingIsLeft();
  std::vector<Worker*> living() const;

  const Plan& plan_;
  World world_;
  Workers workers_; // by slot; null: none lives
  std::vector<StoreFailures> storeFailures_; // of who starts next
  std::set<uint64_t> notRemoved_; // incarnations; of processes that have ended, too
  std::set<std::pair<ContextId, WorkerId>> unreached_;
  bool healed_ = false;
  uint64_t faults_ = 0;
};

/// Runs a plan.
inline Outcome run(
    const Plan& plan, Bug bug = Bug::none,
    std::function<void(const std::string&)> trace = nullptr) {
  return Simulation(plan, bug, std::move(trace)).run();
}

} // namespace torchwire::simulation
