// Membership: the rounds in which a group shuts down.
#include <chrono>
#include <stdexcept>
#include <utility>

#include "backend/membership/membership.h"
#include "backend/membership/store_access.h"

namespace torchwire {
namespace {

// Below the group's prefix.
const std::string kShutdown = "shutdown/"; // + round + what is counted
const std::string kBegun = kShutdown + "begun/"; // + "of/ID": each worker that has
const std::string kFinished = kShutdown + "finished/"; // the same
const std::string kFailed = kShutdown + "failed"; // why the group cannot shut down together
const std::string kCannot = "the RPC group cannot shut down gracefully: ";

// What was being done when the store failed.
const std::string kShuttingDown = "shut down together with the RPC group";

constexpr std::chrono::hours kForEver{24 * 365};
constexpr std::chrono::seconds kLookInterval{1};
constexpr std::chrono::seconds kFarewell{5};
constexpr std::chrono::seconds kFailureFarewell{1};

std::vector<uint8_t> encode(const Totals& totals) {
  return toStore(totals.encode());
}

Totals decodeTotals(const std::vector<uint8_t>& value) {
  return Totals::decode(fromStore(value));
}

std::string numbersKey(const std::string& round, WorkerId id) {
  return round + "of/" + std::to_string(id);
}

/// Another process in place of a worker of an elastic group has numbers of its own.
std::string numbersKey(const std::string& round, WorkerId id, uint64_t incarnation) {
  return numbersKey(round, id) + "/" + std::to_string(incarnation);
}

/// Does it anew whenever the shutdown's rounds move to another store, which is as empty as at their beginning.
template <typename Step>
auto whereverItIs(Step step) {
  for (;;) {
    try {
      return step();
    } catch (const StoreMoved&) {
      continue;
    }
  }
}

} // namespace

// The last to arrive writes down the sums. Where one is missing there is no last, and who knows of its death adds up what
// the others have written each for itself; the first sums that are written stand.
Totals Membership::sum(
    const std::string& round, const Totals& mine, const std::function<void()>& check,
    const Dead& dead) {
  return whereverItIs([&] { return sumInOneStore(round, mine, check, dead); });
}

std::string Membership::ownKey(const std::string& round) const {
  const bool byIncarnation = self_.isElastic() && !rounds_.others();
  return byIncarnation ? numbersKey(round, self_.id, self_.incarnation)
                       : numbersKey(round, self_.id);
}

Totals Membership::sumInOneStore(
    const std::string& round, const Totals& mine, const std::function<void()>& check,
    const Dead& dead) {
  const std::string key = keyOf(kShutdown) + round + "/";
  // Before others, who know less, can complete the round with this worker's numbers.
  shutDownTogether(check);
  // The count is proven by nobody: it says when it is worth to look at all numbers.
  const bool isLast = asking(self_, kShuttingDown, [&] {
    noteBegun();
    rounds_.set(ownKey(key), encode(mine));
    return rounds_.add(key + "arrived", 1) >= static_cast<int64_t>(worldSize_);
  });
  if (isLast && !self_.isElastic()) {
    completeWithout({}, key);
  }
  awaitRound(key, check, dead);
  const std::vector<uint8_t> all =
      asking(self_, kShuttingDown, [&] { return rounds_.get(key + "all"); });
  rounds_.keep(key + "all", all);
  Totals totals = decodeTotals(all);
  if (totals.missing.contains(self_.id) ||
      (self_.isElastic() && !totals.present.contains(self_.id))) {
    throw LeftOut(
        "the RPC group has shut down without " + self_.describe() + ", which it took for dead");
  }
  return totals;
}

void Membership::completeWithout(const std::set<WorkerId>& dead, const std::string& key) {
  asking(self_, kShuttingDown, [&] {
    std::vector<std::string> keys;
    for (WorkerId id = 0; id < static_cast<WorkerId>(worldSize_); ++id) {
      if (!dead.contains(id)) {
        keys.push_back(numbersKey(key, id));
      }
    }
    if (!rounds_.checkAll(keys)) {
      return;
    }
    Totals totals;
    totals.missing = dead;
    for (const std::vector<uint8_t>& numbers : rounds_.getAll(keys)) {
      totals.add(decodeTotals(numbers));
    }
    rounds_.compareSet(key + "all", {}, encode(totals));
  });
}

/// False where they are not there yet.
bool Membership::addNumbers(const std::string& key, Totals& totals) {
  if (!rounds_.check(key)) {
    return false;
  }
  totals.add(decodeTotals(rounds_.get(key)));
  return true;
}

// All on the list, as it stands when it is closed, or later without the dead: who has not come to this round is waited for.
void Membership::completeElastic(const std::string& key) {
  if (auto others = rounds_.others()) {
    completeAmong(std::move(*others), key);
    return;
  }
  asking(self_, kShuttingDown, [&] {
    const std::vector<uint8_t> seen = rounds_.get(keyOf(kRosterKey));
    Roster roster = Roster::decode(fromStore(seen));
    Totals totals;
    for (const WorkerRecord& worker : roster.workers) {
      if (!addNumbers(numbersKey(key, worker.id, worker.incarnation), totals)) {
        lookFor(worker);
        return;
      }
      totals.present.insert(worker.id);
    }
    if (!roster.closed) {
      roster.closed = true;
      const std::vector<uint8_t> wanted = toStore(roster.encode());
      if (rounds_.compareSet(keyOf(kRosterKey), seen, wanted) != wanted) {
        return; // somebody has come meanwhile, or gone
      }
    }
    rounds_.compareSet(key + "all", {}, encode(totals));
  });
}

// It may have ended right after it had joined, before anybody knew it.
void Membership::lookFor(const WorkerRecord& missing) {
  if (clock_->now() < lookedFor_ + kLookInterval) {
    return;
  }
  if (hasEnded_(missing, /* asksHost */ true)) {
    takeOff(missing);
  }
  lookedFor_ = clock_->now();
}

// Without the store there is no list any more, and nobody to come: all are those whom this worker knows.
void Membership::completeAmong(std::set<WorkerId> others, const std::string& key) {
  others.insert(self_.id);
  asking(self_, kShuttingDown, [&] {
    Totals totals;
    totals.present = others;
    for (const WorkerId id : others) {
      if (!addNumbers(numbersKey(key, id), totals)) {
        return;
      }
    }
    rounds_.compareSet(key + "all", {}, encode(totals));
  });
}

// Looks up now and then: a worker that is gone will never come, and who finds that out tells the others,
// which may have no link to it. (TCPStore can wait on its own, but logs every wait that times out.)
void Membership::awaitRound(
    const std::string& key, const std::function<void()>& check, const Dead& dead) {
  const auto isOver = [&] {
    if (isComplete(key)) {
      return true;
    }
    throwIfFailed();
    try {
      check();
    } catch (const std::exception&) {
      // A peer that has left is a bad sign unless it left because the round is complete.
      if (!isComplete(key)) {
        throwIfFailed(); // which may be why it has left
        throw;
      }
    }
    if (self_.isElastic()) {
      completeElastic(key);
    } else if (const std::set<WorkerId> missing = dead(); !missing.empty()) {
      completeWithout(missing, key);
    }
    return false;
  };
  shutDownTogether([&] { poll(*clock_, kForEver, isOver); });
}

bool Membership::isComplete(const std::string& key) {
  return asking(self_, kShuttingDown, [&] { return rounds_.check(key + "all"); });
}

void Membership::shutDownTogether(const std::function<void()>& part) {
  try {
    part();
  } catch (const StoreMoved&) {
    throw;
  } catch (const LeftOut&) {
    throw;
  } catch (const Interrupted&) {
    interruptShutdown();
    throw;
  } catch (const BrokenOff& e) {
    giveUpShutdown(e.toOthers);
    throw;
  } catch (const std::exception& e) {
    const std::string failure = giveUpShutdown(e.what());
    if (failure == e.what()) {
      throw;
    }
    throw std::runtime_error(failure);
  }
}

Membership::BrokenOff::BrokenOff(const std::string& here, const std::string& others)
    : std::runtime_error(kCannot + here), toOthers(kCannot + others) {}

void Membership::interruptShutdown() {
  giveUpShutdown(kCannot + self_.describe() + " was interrupted in rpc.shutdown()");
}

/// Returns the sentence that stands: of several workers that fail, the first one's.
std::string Membership::giveUpShutdown(const std::string& why) {
  if (failure_) {
    return *failure_;
  }
  failure_ = why;
  try {
    const std::vector<uint8_t> standing =
        whereverItIs([&] { return rounds_.compareSet(keyOf(kFailed), {}, toStore(why)); });
    failure_ = std::string(standing.begin(), standing.end());
    noteBegun();
    awaitFinished([&] { return begun(); }, kFailureFarewell, [] { return std::set<WorkerId>(); });
  } catch (const std::exception&) {
    // The store is gone too; the others find that out by themselves.
  }
  return *failure_;
}

void Membership::noteBegun() {
  if (!hasBegun_ && !rounds_.others()) {
    rounds_.set(numbersKey(keyOf(kBegun), self_.id), {1});
    hasBegun_ = true;
  }
}

/// Those that shut down and have not gone, for all that is known after kFailureFarewell.
std::set<WorkerId> Membership::begun() {
  if (auto others = rounds_.others()) {
    return *std::move(others);
  }
  std::set<WorkerId> all;
  const auto end = clock_->now() + kFailureFarewell;
  for (const WorkerRecord& worker :
       Roster::decode(fromStore(store_.get(keyOf(kRosterKey)))).workers) {
    if (clock_->now() >= end) {
      break;
    }
    if (rounds_.check(numbersKey(keyOf(kBegun), worker.id))) {
      all.insert(worker.id);
    }
  }
  return all;
}

void Membership::throwIfFailed() {
  const bool failed = asking(self_, kShuttingDown, [&] { return rounds_.check(keyOf(kFailed)); });
  if (failed) {
    const std::vector<uint8_t> sentence =
        asking(self_, kShuttingDown, [&] { return rounds_.get(keyOf(kFailed)); });
    throw std::runtime_error(std::string(sentence.begin(), sentence.end()));
  }
}

void Membership::waitForOthersToFinish(const Totals& last, const Dead& dead) {
  const auto inTheLastSum = [&] {
    std::set<WorkerId> all = last.present;
    for (WorkerId id = 0; !self_.isElastic() && id < static_cast<WorkerId>(worldSize_); ++id) {
      if (!last.missing.contains(id)) {
        all.insert(id);
      }
    }
    return all;
  };
  try {
    awaitFinished(inTheLastSum, kFarewell, dead);
  } catch (const StoreMoved&) {
    return; // the store is gone: nobody depends on this worker for it any more
  }
}

/// A worker needs the store no more once its note is there. Notes are not counted by the workers themselves: one that dies
/// between its note and its count would leave it open whether it has been counted.
void Membership::awaitFinished(
    const std::function<std::set<WorkerId>()>& awaited, std::chrono::milliseconds patience,
    const Dead& dead) {
  const std::string key = keyOf(kFinished);
  asking(self_, kShuttingDown, [&] {
    rounds_.set(numbersKey(key, self_.id), {1});
    if (!rounds_.isServedBy(self_.id)) {
      return;
    }
    std::set<WorkerId> missing = awaited();
    missing.erase(self_.id);
    poll(*clock_, patience, [&] {
      const std::set<WorkerId> gone = dead();
      const auto isDone = [&](WorkerId id) {
        return gone.contains(id) || rounds_.check(numbersKey(key, id));
      };
      while (!missing.empty() && isDone(*missing.begin())) {
        missing.erase(missing.begin());
      }
      return missing.empty() || !rounds_.isWanted();
    });
  });
}

} // namespace torchwire
