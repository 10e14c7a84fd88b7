// Membership: whether a static group can start, and who says that it cannot.
#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>

#include "backend/base/one_line.h"
#include "backend/membership/membership.h"
#include "backend/membership/startup_keys.h"
#include "backend/membership/store_access.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

// By then most groups whose workers start together are complete.
constexpr milliseconds kFirstLooks{20};

constexpr size_t kMaxDecision = 1000; // bytes of what a stranger may have written

// How often a worker that waits for the others looks whether those that have come still live.
constexpr milliseconds kLookAtStart{500};
// How often it asks the host of one of them, where the process is not to be seen.
constexpr milliseconds kAskAtStart{2000};
// In that time those who wait for the startup decision look it up.
constexpr milliseconds kFarewellAtStart{300};

} // namespace

void Membership::refuse(const std::string& objection, const Roster& roster) {
  if (worldSize_ != 0 ||
      roster.isStatic()) { // those who wait for the group to be complete would wait in vain
    const std::string standing = decide(objection);
    if (standing != kAccepted && roster.isStatic()) {
      listAsRefused();
    }
    throwRefused(standing, objection);
  }
  throw std::runtime_error(objection);
}

void Membership::endStartup(const std::string& objection) {
  throwRefused(decide(objection), objection);
}

void Membership::throwRefused(const std::string& standing, const std::string& objection) {
  // Of several that object each throws what the first has said; one that comes to a group that runs says its own.
  throw std::runtime_error(standing == kAccepted ? objection : standing);
}

// The first decision stands: a worker that comes to a group that already runs does not end it.
std::string Membership::decide(const std::string& decision) {
  return decisionIn(asking(self_, kJoining, [&] {
    return store_.exchange(
        keyOf(kStartupDecision), {},
        toStore(store_.canProve() ? decision : oneLine(decision, kMaxDecision)));
  }));
}

// Whoever does not know the group's secret has to be able to say so. That the group may start is for members to say.
std::string Membership::decisionIn(const StoreEntry& entry) {
  const std::string decision(entry.value.begin(), entry.value.end());
  if (entry.proven) {
    return decision;
  }
  return decision == kAccepted
      ? "somebody who does not know the group's secret has written into the rendezvous store that "
        "the RPC group may start"
      : oneLine(decision, kMaxDecision);
}

void Membership::awaitStartupDecision(std::optional<std::string> decision) {
  // Most groups are complete before a look at each process is worth its time.
  lookedFor_ = clock_->now();
  poll(*clock_, timeout_, [&, patience = kFirstLooks]() mutable {
    if (!decision) {
      decision = startupDecision(std::exchange(patience, milliseconds(0)));
    }
    if (!decision) {
      endStartupWithoutTheDead();
    }
    return decision.has_value();
  });
  if (!decision) {
    const std::string missing = missingRanks();
    throw std::runtime_error(
        self_.describe() + " waited " + std::to_string(timeout_.count() / 1000) +
        " s for the RPC group of world_size=" + std::to_string(worldSize_) + " to be complete; " +
        (missing.empty() ? "all are there, but the last to come ended before it could say so"
                         : "not there: " + missing));
  }
  if (*decision != kAccepted) {
    throw std::runtime_error(*decision);
  }
}

std::optional<std::string> Membership::startupDecision(milliseconds patience) {
  const StoreEntry entry =
      asking(self_, kJoining, [&] { return store_.findWithin(patience, keyOf(kStartupDecision)); });
  return entry.bytes.empty() ? std::nullopt : std::optional(decisionIn(entry));
}

/// A static group will never be complete once one of its workers has ended before the last has come, unless others may come
/// in the place of workers. Each asks the host of the next one: so all are asked about, and nobody by all.
void Membership::endStartupWithoutTheDead() {
  if (self_.isElastic() || clock_->now() < lookedFor_ + kLookAtStart) {
    return;
  }
  lookedFor_ = clock_->now();
  const Roster roster = currentRoster();
  const WorkerRecord* asked = clock_->now() < askedFor_ + kAskAtStart ? nullptr : nextTo(roster);
  if (asked != nullptr) {
    askedFor_ = clock_->now();
  }
  for (const WorkerRecord& worker : roster.workers) {
    if (worker.incarnation != self_.incarnation && hasEnded_(worker, &worker == asked)) {
      endStartupWithout(worker);
      return;
    }
  }
  if (const auto arrived = nextMissing(roster); arrived && hasEnded_(*arrived, false)) {
    endStartupWithout(*arrived);
  }
}

void Membership::endStartupWithout(const WorkerRecord& dead) {
  asking(self_, kJoining, [&] {
    store_.set(keyOf(kFailedAt), toStore(std::to_string(systemTime())));
  });
  decide(
      "the RPC group of world_size=" + std::to_string(worldSize_) +
      " cannot start: " + dead.describe() + " ended before all workers were there");
}

/// The worker of the first rank after this one's that is not on the list, where it has begun to start. So each looks for one,
/// and all for the last.
std::optional<WorkerRecord> Membership::nextMissing(const Roster& roster) {
  WorkerId id = self_.id;
  do {
    id = (id + 1) % static_cast<WorkerId>(worldSize_);
  } while (id != self_.id && roster.find(id) != nullptr);
  return arrivalOf(id);
}

/// Of a worker that has begun to start. None of an earlier group, all of whose workers have ended: it came before this
/// process began. Nobody has proven it, so its text is looked at: members show it.
std::optional<WorkerRecord> Membership::arrivalOf(WorkerId id) {
  const std::string key = keyOf(kArrived + std::to_string(id));
  const std::vector<uint8_t> bytes =
      asking(self_, kJoining, [&] { return store_.findIfThere(key).value; });
  try { // it is written before a worker can have the group's key
    const std::vector<char> announced(bytes.begin(), bytes.end());
    if (ByteReader(announced).number<int64_t>() < startOf(self_.process)) {
      return std::nullopt;
    }
    const Roster roster = Roster::decode({announced.begin() + sizeof(int64_t), announced.end()});
    const WorkerRecord& worker = roster.workers.at(0);
    return worker.id == id && !objectionToName(worker.name) ? std::optional(worker) : std::nullopt;
  } catch (const FormatError&) {
    return std::nullopt;
  } catch (const std::out_of_range&) {
    return std::nullopt;
  }
}

/// The one with the next rank, after the highest the lowest; none where there is no other.
const WorkerRecord* Membership::nextTo(const Roster& roster) const {
  const WorkerRecord* lowest = nullptr;
  const WorkerRecord* next = nullptr;
  for (const WorkerRecord& worker : roster.workers) {
    const WorkerRecord*& first = worker.id > self_.id ? next : lowest;
    if (worker.id != self_.id && (first == nullptr || worker.id < first->id)) {
      first = &worker;
    }
  }
  return next != nullptr ? next : lowest;
}

void Membership::giveUpStart(const std::string& why) {
  if (worldSize_ == 0) {
    return;
  }
  try {
    Roster roster = currentRoster();
    while (isOver(roster, store_.canProve())) {
      ++generation_;
      roster = currentRoster();
    }
    store_.set(keyOf(kFailedAt), toStore(std::to_string(systemTime())));
    if (decide(why) == why) {
      listAsFailed();
    }
    if (self_.id == 0 && roster.workers.size() > 1) { // PyTorch's launchers put the store there
      clock_->sleepFor(kFarewellAtStart);
    }
  } catch (const std::exception&) {
    // The others cannot be told.
  }
}

/// For those that start in its place, see isOver().
void Membership::listAsFailed() {
  Roster alone;
  alone.worldSize = worldSize_;
  alone.groupId = groupId_;
  alone.workers.push_back(self_);
  const std::vector<uint8_t> wanted = toStore(alone.encode());
  if (store_.exchange(keyOf(kRosterKey), {}, wanted).value != wanted) {
    listAsRefused();
  }
}

std::string Membership::missingRanks() {
  const Roster roster = currentRoster();
  std::string ranks;
  for (WorkerId id = 0; id < static_cast<WorkerId>(worldSize_); ++id) {
    if (roster.find(id) == nullptr) {
      ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(id);
    }
  }
  return ranks;
}

} // namespace torchwire
