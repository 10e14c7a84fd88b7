// What is true of a run, as only the simulation can know it, and what must hold.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/base/error.h"
#include "rref/ledger/global_id.h"
#include "test/simulation/event_queue.h"
#include "test/simulation/network.h"
#include "test/simulation/plan.h"

namespace torchwire::simulation {

// clang-format off
#define TORCHWIRE_SIMULATION_INVARIANTS(X)                                                       \
  X(once,      "no request runs twice")                                                          \
  X(ends,      "each call ends once, and not after its deadline")                                \
  X(truth,     "what an error says of `executed` is true, and no answer is lost or another's")   \
  X(reclaimed, "no fork and no context is leaked or lost")                                       \
  X(waits,     "nobody waits for ever")                                                          \
  X(agreement, "all agree who is dead")
// clang-format on

enum class Invariant : uint8_t {
#define TORCHWIRE_INVARIANT(name, sentence) name,
  TORCHWIRE_SIMULATION_INVARIANTS(TORCHWIRE_INVARIANT)
#undef TORCHWIRE_INVARIANT
};
const char* nameOf(Invariant invariant);

struct Violation {
  Invariant invariant;
  std::string text;
};

/// A process: each that has ever been, by its number.
struct ProcessFacts {
  Slot slot = 0;
  uint64_t incarnation = 0;
  Time began{};
  std::optional<Time> ended;
  bool left = false; // in order
  bool declaredDead = false; // on the list in the store, though it had not ended
  bool missedIt = false; // the store has failed when it was about to find that out

  bool isOver() const {
    return ended || declaredDead;
  }
};

/// One request that a process has made.
struct CallFacts {
  size_t caller = 0; // process
  Slot to = 0;
  size_t callee = 0; // process that was there
  Time began{};
  std::chrono::milliseconds timeout{0};
  std::string what;
  bool sure = true; // it succeeds where nothing is in its way
  std::optional<Time> ended;
  Error error;
  int runs = 0;
  size_t ranOn = 0; // process
};

/// Not thread-safe.
class Oracle {
 public:
  Oracle(const EventQueue& queue, const Settings& settings) : queue_(queue), settings_(settings) {}

  /// The run ends at the first.
  void violate(Invariant invariant, const std::string& text);
  const std::optional<Violation>& violation() const {
    return violation_;
  }

  // ---- processes
  /// Returns its number; its incarnation is that and 1000.
  size_t begins(Slot slot);
  void processEnds(size_t process, bool inOrder);
  const ProcessFacts& process(size_t number) const {
    return processes_[number];
  }
  /// The number of the process with this incarnation.
  size_t numberOf(uint64_t incarnation) const {
    return incarnation - kFirstIncarnation;
  }
  bool hasEnded(uint64_t incarnation) const {
    return processes_[numberOf(incarnation)].ended.has_value();
  }
  /// A process is on the list of the dead in the store.
  struct Declaration {
    size_t by = 0; // process
    std::vector<Slot> others; // of peers that live, as far as that one knows
  };
  void declaredDead(uint64_t incarnation, const Declaration& declaration);
  uint64_t declaredDead() const {
    return declaredDead_;
  }
  void storeFailed(size_t process) {
    processes_[process].missedIt |= processes_[process].declaredDead;
  }
  /// A worker takes another for dead.
  void toldDead(const std::string& who, uint64_t incarnation);

  // ---- calls
  uint64_t called(CallFacts facts);
  void ran(uint64_t call, size_t process);
  /// `answered`: whose answer has come, where there is no error.
  void ended(uint64_t call, const Error& error, uint64_t answered);
  /// Of those whose process lives, those that have not ended.
  std::vector<std::string> pending() const;
  void checkDeadlines();
  /// What can be said of all calls once nothing happens any more.
  void checkExecuted();
  const CallFacts& call(uint64_t number) const {
    return calls_[number - 1];
  }
  uint64_t calls() const {
    return calls_.size();
  }
  uint64_t failed() const {
    return failed_;
  }

  // ---- what disturbs a pair of hosts
  struct Disturbance {
    Time begin{};
    Time end{};
  };
  /// Begins now. Of a host and itself: of the host.
  void disturb(Slot a, Slot b, Duration length);
  void damaged(Slot a, Slot b);
  void refused(Slot a, Slot b);
  void heal();

  /// Of requests with an RRef as their argument: the fork, and whose it is.
  struct Carried {
    uint64_t call;
    GlobalId rref;
    GlobalId fork;
  };
  void carries(const Carried& carried) {
    carried_.push_back(carried);
  }
  /// The forks whose message has been lost, though its receiver lives, in a group without sessions: nobody takes these back,
  /// see docs/reliability.md, "What is not promised".
  std::set<GlobalId> lostForks() const;

 private:
  static constexpr uint64_t kFirstIncarnation = 1000;

  std::string describe(uint64_t call) const;
  void checkLoss(uint64_t call);
  bool isExcused(const CallFacts& call) const;
  bool wereApart(Slot a, Slot b, Time since) const;
  bool hearsNobody(const Declaration& declaration, Slot silent) const;
  void endNow(std::vector<Disturbance>& all) const;
  Duration longestDisturbance(Slot a, Slot b, Time from, Time to) const;
  size_t countBetween(
      const std::map<std::pair<Slot, Slot>, std::vector<Time>>& events, Slot a, Slot b, Time from,
      Time to) const;

  const EventQueue& queue_;
  const Settings& settings_;
  std::vector<ProcessFacts> processes_;
  std::deque<CallFacts> calls_;
  std::optional<Violation> violation_;
  std::vector<Carried> carried_;
  uint64_t failed_ = 0;
  uint64_t declaredDead_ = 0;
  std::map<std::pair<Slot, Slot>, std::vector<Disturbance>> disturbances_;
  std::map<std::pair<Slot, Slot>, std::vector<Time>> damages_, refusals_;
};

} // namespace torchwire::simulation
