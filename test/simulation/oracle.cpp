#include "test/simulation/oracle.h"

#include <algorithm>
#include <utility>

namespace torchwire::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Of the clock's and the pools' making.
constexpr milliseconds kSlack{5};
// What is disturbed again before a session had the time to go on counts as disturbed throughout.
constexpr seconds kRecovery{3};
// What a session that lasts so long needs at its end to go on: the first dial that gets through may begin 1.2 s and a pause after
// the healing, and the break may be noticed by one side at once and by the other late.
constexpr seconds kResumption{4};
// What four tries outlive, of which each may be lost to something else.
constexpr seconds kFirstDial{2};
// So late may a side notice, by its keepalives, that the other has given the session up.
constexpr seconds kNotice{15};
// So long is an answer awaited that shows that a worker is not the one that is cut off, and so much later a frame may arrive
// that was under way when the cut began, or that was held up by it.
constexpr milliseconds kPing{2000};
constexpr milliseconds kOnTheWay{500};

std::pair<Slot, Slot> pairOf(Slot a, Slot b) {
  return {std::min(a, b), std::max(a, b)};
}

std::string secondsOf(Time time) {
  return std::to_string(std::chrono::duration_cast<milliseconds>(time.time_since_epoch()).count()) +
      " ms";
}

} // namespace

const char* nameOf(Invariant invariant) {
  switch (invariant) {
#define TORCHWIRE_INVARIANT(name, sentence) \
  case Invariant::name:                     \
    return sentence;
    TORCHWIRE_SIMULATION_INVARIANTS(TORCHWIRE_INVARIANT)
#undef TORCHWIRE_INVARIANT
  }
  return "?";
}

void Oracle::violate(Invariant invariant, const std::string& text) {
  if (!violation_) {
    violation_ = {invariant, "at " + secondsOf(queue_.now()) + ": " + text};
  }
}

// ---- processes ----------------------------------------------------------------------------------

size_t Oracle::begins(Slot slot) {
  ProcessFacts process;
  process.slot = slot;
  process.incarnation = kFirstIncarnation + processes_.size();
  process.began = queue_.now();
  processes_.push_back(process);
  return processes_.size() - 1;
}

void Oracle::processEnds(size_t process, bool inOrder) {
  processes_[process].ended = queue_.now();
  processes_[process].left = inOrder;
  const Slot slot = processes_[process].slot;
  endNow(disturbances_[{slot, slot}]); // a process that comes in its place does not stand still
}

void Oracle::declaredDead(uint64_t incarnation, const Declaration& declaration) {
  ProcessFacts& dead = processes_[numberOf(incarnation)];
  if (dead.isOver()) {
    return;
  }
  dead.declaredDead = true;
  ++declaredDead_;
  const ProcessFacts& by = processes_[declaration.by];
  const std::string what =
      "w" + std::to_string(by.slot) + " declares w" + std::to_string(dead.slot) + " dead, ";
  if (settings_.sessionTimeout.count() == 0) {
    violate(Invariant::agreement, what + "which lives, and there are no sessions");
  } else if (!wereApart(by.slot, dead.slot, queue_.now())) {
    violate(Invariant::agreement, what + "for no reason");
  } else if (hearsNobody(declaration, dead.slot)) {
    violate(Invariant::agreement, what + "and is cut off from all others itself");
  }
}

/// Whether no other could have answered that worker just now, though there are others.
bool Oracle::hearsNobody(const Declaration& declaration, Slot silent) const {
  const Slot self = processes_[declaration.by].slot;
  const Time now = queue_.now();
  const auto lasts = [&](Slot a, Slot b) {
    const auto found = disturbances_.find(pairOf(a, b));
    return found != disturbances_.end() &&
        std::any_of(found->second.begin(), found->second.end(), [&](const Disturbance& one) {
             return one.begin <= now - kPing - kOnTheWay && one.end >= now + kOnTheWay;
           });
  };
  const auto pauses = disturbances_.find({self, self});
  if (pauses != disturbances_.end() && !pauses->second.empty() &&
      pauses->second.back().end >= now - kPing) { // an answer may have come before it stood still
    return false;
  }
  bool isAlone = true;
  for (const Slot other : declaration.others) {
    if (other != silent) {
      isAlone = false;
      if (!lasts(self, other) && !lasts(other, other)) {
        return false;
      }
    }
  }
  return !isAlone;
}

void Oracle::toldDead(const std::string& who, uint64_t incarnation) {
  const ProcessFacts& process = processes_[numberOf(incarnation)];
  if (!process.isOver()) {
    violate(
        Invariant::agreement,
        who + " takes w" + std::to_string(process.slot) + " for dead which lives");
  }
}

// ---- calls --------------------------------------------------------------------------------------

uint64_t Oracle::called(CallFacts facts) {
  facts.began = queue_.now();
  calls_.push_back(std::move(facts));
  return calls_.size();
}

std::string Oracle::describe(uint64_t number) const {
  const CallFacts& call = calls_[number - 1];
  const ProcessFacts& caller = processes_[call.caller];
  return "call " + std::to_string(number) + " (" + call.what + ", w" + std::to_string(caller.slot) +
      " to w" + std::to_string(call.to) + " at " + secondsOf(call.began) + ", timeout " +
      std::to_string(call.timeout.count()) + " ms)";
}

void Oracle::ran(uint64_t number, size_t process) {
  CallFacts& call = calls_[number - 1];
  ++call.runs;
  call.ranOn = process;
  if (!(call.runs == 1)) {
    violate(Invariant::once, describe(number) + " has run twice");
  }
  if (!(!(call.ended && call.error && call.error.executed() == Executed::no))) {
    violate(Invariant::truth, describe(number) + " runs though its error said that it never would");
  }
}

void Oracle::ended(uint64_t number, const Error& error, uint64_t answered) {
  CallFacts& call = calls_[number - 1];
  if (!(!call.ended)) {
    violate(Invariant::ends, describe(number) + " has ended twice");
  }
  call.ended = queue_.now();
  call.error = error;
  if (error) {
    ++failed_;
    if (!(error.executed() != Executed::no || call.runs == 0)) {
      violate(
          Invariant::truth,
          describe(number) + " has run and its error says that it has not: " + error.message());
    }
    checkLoss(number);
  } else {
    if (!(answered == number)) {
      violate(
          Invariant::truth,
          describe(number) + " was given the answer to call " + std::to_string(answered));
    }
    if (!(call.runs == 1)) {
      violate(Invariant::truth, describe(number) + " was answered and has not run");
    }
  }
}

std::set<GlobalId> Oracle::lostForks() const {
  std::set<GlobalId> lost;
  if (settings_.sessionTimeout.count() > 0) { // who got what is told in the next session
    return lost;
  }
  for (const Carried& carried : carried_) {
    const CallFacts& call = calls_[carried.call - 1];
    const ProcessFacts& callee = processes_[call.callee];
    const bool isTakenBack = call.ended && call.error.executed() == Executed::no;
    if (call.runs == 0 && !isTakenBack && !callee.ended) {
      lost.insert(carried.fork);
    }
  }
  return lost;
}

std::vector<std::string> Oracle::pending() const {
  std::vector<std::string> all;
  for (uint64_t number = 1; number <= calls_.size(); ++number) {
    const CallFacts& call = calls_[number - 1];
    if (!call.ended && !processes_[call.caller].ended) {
      all.push_back(describe(number));
    }
  }
  return all;
}

void Oracle::checkDeadlines() {
  for (uint64_t number = 1; number <= calls_.size(); ++number) {
    const CallFacts& call = calls_[number - 1];
    const ProcessFacts& caller = processes_[call.caller];
    if (call.timeout.count() == 0) {
      continue;
    }
    const Time end = call.ended ? *call.ended : caller.ended.value_or(queue_.now());
    Time due = call.began + call.timeout + kSlack;
    const auto pauses = disturbances_.find({caller.slot, caller.slot});
    if (pauses != disturbances_.end()) { // a process that stands still ends none
      for (const Disturbance& pause : pauses->second) {
        if (pause.begin <= due && pause.end + kSlack > due) {
          due = pause.end + kSlack;
        }
      }
    }
    if (!(end <= due)) {
      violate(
          Invariant::ends,
          describe(number) + (call.ended ? " ended at " + secondsOf(end) : " has not ended"));
    }
  }
}

void Oracle::checkExecuted() {
  for (uint64_t number = 1; number <= calls_.size(); ++number) {
    const CallFacts& call = calls_[number - 1];
    if (call.ended && call.error.executed() == Executed::yes && call.runs == 0) {
      if (!(processes_[call.callee].ended.has_value())) {
        violate(
            Invariant::truth,
            describe(number) +
                " has not run and its error says that it has: " + call.error.message());
      }
    }
  }
}

// ---- losses -------------------------------------------------------------------------------------

/// A call that failed: whether it may have.
void Oracle::checkLoss(uint64_t number) {
  const CallFacts& call = calls_[number - 1];
  const bool late =
      call.error.code() == ErrorCode::timeout || call.error.code() == ErrorCode::overloaded;
  const bool patient = call.timeout >= seconds(60) && call.sure;
  if (late ? !patient : false) {
    return;
  }
  if (!(isExcused(call))) {
    violate(Invariant::truth, describe(number) + " is lost for no reason: " + call.error.message());
  }
}

bool Oracle::isExcused(const CallFacts& call) const {
  const ProcessFacts& caller = processes_[call.caller];
  const ProcessFacts& callee = processes_[call.callee];
  if (caller.slot == call.to) {
    return caller.ended.has_value();
  }
  const ErrorCode code = call.error.code();
  if (callee.isOver() || caller.isOver() || code == ErrorCode::shutDown) {
    return callee.isOver() || caller.isOver();
  }
  const Time now = queue_.now();
  if (wereApart(caller.slot, call.to, call.began)) {
    return true;
  }
  // A first dial, under way perhaps since before the call, is tried four times. A try that has been given up may yet be
  // accepted, and the session on it is one that the dialer does not know.
  const bool isFirst =
      code == ErrorCode::unreachable || std::max(caller.began, callee.began) > call.began - kNotice;
  if (isFirst &&
      (countBetween(refusals_, caller.slot, call.to, call.began - kNotice, now) > 0 ||
       longestDisturbance(caller.slot, call.to, call.began - kNotice, now) > kFirstDial)) {
    return true;
  }
  return countBetween(damages_, caller.slot, call.to, call.began - kNotice, now) > 1;
}

/// For longer than a session outlives; or without sessions at all.
bool Oracle::wereApart(Slot a, Slot b, Time since) const {
  // A session that a long disturbance has ended on one side may be found out late by the other.
  const bool hasSessions = settings_.sessionTimeout.count() > 0;
  const Duration outlived = hasSessions
      ? std::max<Duration>(settings_.sessionTimeout - kResumption, Duration(0))
      : Duration(-1);
  return longestDisturbance(a, b, since - kNotice, queue_.now()) > outlived;
}

Duration Oracle::longestDisturbance(Slot a, Slot b, Time from, Time to) const {
  std::vector<Disturbance> all;
  for (const auto& pair : {pairOf(a, b), std::pair(a, a), std::pair(b, b)}) {
    const auto found = disturbances_.find(pair);
    if (found != disturbances_.end()) {
      all.insert(all.end(), found->second.begin(), found->second.end());
    }
  }
  std::sort(all.begin(), all.end(), [](const Disturbance& x, const Disturbance& y) {
    return x.begin < y.begin;
  });
  Duration longest(-1);
  for (size_t i = 0; i < all.size();) {
    Disturbance merged = all[i];
    for (++i; i < all.size() && all[i].begin <= merged.end + kRecovery; ++i) {
      merged.end = std::max(merged.end, all[i].end);
    }
    if (merged.begin <= to && merged.end + kRecovery >= from) {
      longest = std::max(longest, merged.end - merged.begin);
    }
  }
  return longest;
}

size_t Oracle::countBetween(
    const std::map<std::pair<Slot, Slot>, std::vector<Time>>& events, Slot a, Slot b, Time from,
    Time to) const {
  const auto found = events.find(pairOf(a, b));
  return found == events.end() ? 0
                               : static_cast<size_t>(std::count_if(
                                     found->second.begin(), found->second.end(),
                                     [&](Time time) { return time >= from && time <= to; }));
}

void Oracle::disturb(Slot a, Slot b, Duration length) {
  disturbances_[pairOf(a, b)].push_back({queue_.now(), queue_.now() + length});
}

void Oracle::damaged(Slot a, Slot b) {
  damages_[pairOf(a, b)].push_back(queue_.now());
}

void Oracle::refused(Slot a, Slot b) {
  refusals_[pairOf(a, b)].push_back(queue_.now());
}

void Oracle::heal() {
  for (auto& [pair, all] : disturbances_) {
    endNow(all);
  }
}

/// What still lasts ends now.
void Oracle::endNow(std::vector<Disturbance>& all) const {
  for (Disturbance& one : all) {
    one.end = std::min(one.end, std::max(one.begin, queue_.now()));
  }
}

} // namespace torchwire::simulation
