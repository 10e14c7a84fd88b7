#include "test/simulation/simulation.h"

#include <utility>

namespace torchwire::simulation {
namespace {

using std::chrono::milliseconds;

// What is disturbed for a moment, as by a link that breaks and is dialed anew.
constexpr milliseconds kMoment{1500};

} // namespace

Tally& Tally::operator+=(const Tally& other) {
  runs += other.runs;
  calls += other.calls;
  failed += other.failed;
  faults += other.faults;
  steps += other.steps;
  time += other.time;
  lostForks += other.lostForks;
  declaredDead += other.declaredDead;
  return *this;
}

std::string Tally::describe() const {
  return std::to_string(runs) + " runs, " + std::to_string(calls) + " calls (" +
      std::to_string(failed) + " failed), " + std::to_string(faults) + " faults, " +
      std::to_string(steps) + " steps, " + std::to_string(time.count() / 1000) +
      " s of simulated time, " + std::to_string(lostForks) + " forks lost with their message, " +
      std::to_string(declaredDead) + " declared dead";
}

Simulation::Simulation(const Plan& plan, Bug bug, std::function<void(const std::string&)> trace)
    : plan_(plan),
      world_(plan.settings),
      workers_(static_cast<size_t>(plan.settings.slots)),
      storeFailures_(workers_.size()) {
  plantedBug = bug;
  world_.trace = std::move(trace);
  world_.network.setNotes(
      {[this](Slot from, Slot to) {
         world_.oracle.damaged(from, to);
         world_.oracle.disturb(from, to, kMoment);
       },
       [this](Slot from, Slot to) {
         world_.oracle.refused(from, to);
         world_.oracle.disturb(from, to, kMoment);
       }});
}

Simulation::~Simulation() {
  workers_.clear();
  world_.queue.clear(); // what its tasks hold uses the network
}

Outcome Simulation::run() {
  for (Slot slot = 0; slot < plan_.settings.slots; ++slot) {
    start(slot);
  }
  Time last{};
  for (const Step& step : plan_.steps) {
    last = Time(milliseconds(100)) + step.at; // they have joined by then
    world_.queue.at(last, EventQueue::kNobody, [this, &step] { take(step); });
  }
  while (world_.queue.next() <= last && !world_.oracle.violation()) {
    world_.queue.runNext();
  }
  heal();
  if (drain("after the last step")) {
    callAll(false);
  }
  if (drain("after the healing")) {
    callAll(true);
  }
  if (drain("after the last calls")) {
    checkWaits();
    checkAgreement();
    checkForks();
    letGo();
  }
  if (drain("after all has been let go")) {
    checkNothingIsLeft();
    checkWaits();
    world_.oracle.checkExecuted();
    world_.oracle.checkDeadlines();
  }
  Outcome outcome{world_.oracle.violation(), {}};
  outcome.tally = {
      1,
      world_.oracle.calls(),
      world_.oracle.failed(),
      faults_,
      world_.queue.steps(),
      std::chrono::duration_cast<milliseconds>(world_.queue.now().time_since_epoch()),
      world_.oracle.lostForks().size(),
      world_.oracle.declaredDead()};
  return outcome;
}

} // namespace torchwire::simulation
