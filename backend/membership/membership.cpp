#include "backend/membership/membership.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/wire/group_credentials.h"

namespace torchwire {
namespace {

// The store's keys, all below the prefix that init_rpc puts before each group.
const std::string kCredentialsKey = "torchwire/credentials"; // GroupCredentials of the first worker
const std::string kRosterKey = "torchwire/roster"; // Roster, changed by compare-and-set only
const std::string kStartupDecisionKey =
    "torchwire/startup_decision"; // "ok", or why the static group cannot start
const std::string kShutdownKey = "torchwire/shutdown/"; // + round + what is counted
const std::string kFailedKey = kShutdownKey + "failed"; // why the group cannot shut down together
const std::string kAccepted = "ok";

// What was being done when the store failed.
const std::string kJoining = "join the RPC group";
const std::string kShuttingDown = "shut down together with the RPC group";

constexpr std::chrono::microseconds kMinPause{500};
constexpr std::chrono::milliseconds kMaxPause{200};
constexpr std::chrono::hours kForEver{24 * 365};
constexpr std::chrono::seconds kFarewell{5};
constexpr std::chrono::seconds kFailureFarewell{1};

std::vector<uint8_t> toStore(const std::vector<char>& bytes) {
  return std::vector<uint8_t>(bytes.begin(), bytes.end());
}

std::vector<uint8_t> toStore(const std::string& text) {
  return std::vector<uint8_t>(text.begin(), text.end());
}

std::vector<char> fromStore(const std::vector<uint8_t>& bytes) {
  return std::vector<char>(bytes.begin(), bytes.end());
}

std::vector<uint8_t> encode(const Membership::Totals& totals) {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(totals.started);
  out.number(totals.finished);
  out.number(static_cast<uint32_t>(totals.missing.size()));
  for (const WorkerId id : totals.missing) {
    out.number(id);
  }
  return toStore(bytes);
}

Membership::Totals decodeTotals(const std::vector<uint8_t>& value) {
  const std::vector<char> bytes = fromStore(value);
  ByteReader in(bytes);
  Membership::Totals totals;
  totals.started = in.number<int64_t>();
  totals.finished = in.number<int64_t>();
  const uint32_t count = in.count(sizeof(WorkerId));
  for (uint32_t i = 0; i < count; ++i) {
    totals.missing.insert(in.number<WorkerId>());
  }
  return totals;
}

std::string numbersKey(const std::string& round, WorkerId id) {
  return round + "of/" + std::to_string(id);
}

/// Runs a store operation; a failure says what could not be done.
template <typename Operation>
auto asking(const WorkerRecord& self, const std::string& what, Operation operation) {
  try {
    return operation();
  } catch (const std::exception& e) {
    const std::string reason = e.what(); // PyTorch's errors append a stack trace
    throw std::runtime_error(
        self.describe() + " could not " + what +
        ": the rendezvous store (init_method, MASTER_ADDR and MASTER_PORT) did not answer: " +
        reason.substr(0, reason.find('\n')));
  }
}

/// Asks `ready` ever less often until it says yes; false after the time-out. The pause is a small part of
/// the time waited so far: short waits end promptly, long ones (a server that waits for hours for its
/// clients to shut down) cost next to nothing.
template <typename Ready>
bool poll(Clock& clock, std::chrono::milliseconds timeout, Ready ready) {
  const auto start = clock.now();
  while (!ready()) {
    const auto waited = clock.now() - start;
    if (waited >= timeout) {
      return false;
    }
    clock.sleepFor(std::clamp<std::chrono::nanoseconds>(waited / 20, kMinPause, kMaxPause));
  }
  return true;
}

} // namespace

Membership::Membership(
    std::unique_ptr<KeyValueStore> store, WorkerRecord self, uint32_t worldSize,
    std::chrono::milliseconds timeout, std::unique_ptr<Clock> clock, HasEnded hasEnded)
    : store_(std::move(store)),
      clock_(std::move(clock)),
      self_(std::move(self)),
      worldSize_(worldSize),
      timeout_(timeout),
      hasEnded_(std::move(hasEnded)) {}

// The credentials of a dynamic group that all have left are still there. Those who come then go on with them, or,
// where they bring another secret, replace them.
GroupKey Membership::agree(const std::string& secret) {
  const std::vector<uint8_t> mine = toStore(GroupCredentials::draw(self_, secret).encode());
  const std::vector<uint8_t> none;
  const auto proposeInPlaceOf = [&](const std::vector<uint8_t>& expected) {
    return asking(
        self_, kJoining, [&] { return store_->compareSet(kCredentialsKey, expected, mine); });
  };
  std::vector<uint8_t> seen = proposeInPlaceOf(none);
  for (;;) {
    const auto credentials = decoded<GroupCredentials>(seen);
    const auto objection = credentials.objectionTo(self_, secret);
    if (!objection) {
      groupId_ = credentials.groupId;
      return credentials.key(secret);
    }
    const Roster roster = currentRoster();
    // Credentials with which nobody has entered yet are those of a worker that is about to.
    const bool over = roster.workers.empty() && roster.groupId == credentials.groupId;
    std::vector<uint8_t> now = proposeInPlaceOf(over ? seen : none);
    if (!over && now == seen) { // else the roster may be of those who came with other credentials
      refuse(*objection, roster);
    }
    seen = std::move(now);
  }
}

Roster Membership::join(const std::string& address, const HostAddress& onHost) {
  self_.address = address;
  self_.onHost = onHost;
  Roster entered = enter();
  if (!entered.isStatic()) {
    return entered;
  }
  if (entered.isComplete()) {
    decide(kAccepted);
  }
  awaitStartupDecision();
  return currentRoster();
}

Roster Membership::enter() {
  std::vector<uint8_t> seen;
  for (;;) {
    Roster roster = seen.empty() ? Roster() : decoded<Roster>(seen);
    makeRoom(roster);
    if (const auto objection = roster.objectionTo(self_, worldSize_)) {
      refuse(*objection, roster);
    }
    if (roster.workers.empty()) {
      roster.worldSize = worldSize_;
      roster.groupId = groupId_;
    } else if (
        roster.groupId != groupId_) { // all had left, and then came workers with another secret
      refuse(
          self_.describe() +
              " was about to join a group that has ended, and another has begun in its place: "
              "start this worker again",
          roster);
    }
    roster.workers.push_back(self_);
    const std::vector<uint8_t> wanted = toStore(roster.encode());
    std::vector<uint8_t> now =
        asking(self_, kJoining, [&] { return store_->compareSet(kRosterKey, seen, wanted); });
    if (now == wanted) {
      return roster;
    }
    seen = std::move(now); // someone else was quicker
  }
}

void Membership::makeRoom(Roster& roster) const {
  if (worldSize_ != 0 || roster.isStatic()) {
    return;
  }
  std::erase_if(roster.workers, [&](const WorkerRecord& worker) {
    const bool isRival = worker.id == self_.id || worker.name == self_.name;
    return hasEnded_(worker, isRival);
  });
}

template <typename Value>
Value Membership::decoded(const std::vector<uint8_t>& bytes) {
  try {
    return Value::decode(fromStore(bytes));
  } catch (
      const FormatError& e) { // another version: the others must not wait for this worker either
    endStartup(e.what());
  }
}

Roster Membership::currentRoster() {
  const std::vector<uint8_t> bytes = asking(self_, kJoining, [&] {
    const bool exists = store_->check(kRosterKey); // else get() would wait for it
    return exists ? store_->get(kRosterKey) : std::vector<uint8_t>();
  });
  return bytes.empty() ? Roster() : decoded<Roster>(bytes);
}

void Membership::refuse(const std::string& objection, const Roster& roster) {
  if (worldSize_ != 0 ||
      roster.isStatic()) { // those who wait for the group to be complete would wait in vain
    endStartup(objection);
  }
  throw std::runtime_error(objection);
}

void Membership::endStartup(const std::string& objection) {
  const std::string standing = decide(objection);
  // Of several that object each throws what the first has said; one that comes to a group that runs says its own.
  throw std::runtime_error(standing == kAccepted ? objection : standing);
}

// The first decision stands: a worker that comes to a group that already runs does not end it.
std::string Membership::decide(const std::string& decision) {
  const KeyValueStore::Value standing = asking(self_, kJoining, [&] {
    return store_->compareSet(kStartupDecisionKey, {}, toStore(decision));
  });
  return std::string(standing.begin(), standing.end());
}

void Membership::awaitStartupDecision() {
  const bool decided = poll(*clock_, timeout_, [&] {
    return asking(self_, kJoining, [&] { return store_->check(kStartupDecisionKey); });
  });
  if (!decided) {
    const std::string missing = missingRanks();
    throw std::runtime_error(
        self_.describe() + " waited " + std::to_string(timeout_.count() / 1000) +
        " s for the RPC group of world_size=" + std::to_string(worldSize_) + " to be complete; " +
        (missing.empty() ? "all are there, but the last to come ended before it could say so"
                         : "not there: " + missing));
  }
  const std::vector<uint8_t> bytes =
      asking(self_, kJoining, [&] { return store_->get(kStartupDecisionKey); });
  const std::string decision(bytes.begin(), bytes.end());
  if (decision != kAccepted) {
    throw std::runtime_error(decision);
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

void Membership::leave() {
  asking(self_, "leave the RPC group", [&] { takeOff(self_); });
}

void Membership::remove(const WorkerRecord& dead) {
  asking(self_, "take " + dead.describe() + ", which has died, off the list of the RPC group", [&] {
    takeOff(dead);
  });
}

void Membership::takeOff(const WorkerRecord& worker) {
  std::vector<uint8_t> seen = store_->get(kRosterKey);
  for (;;) {
    Roster roster = Roster::decode(fromStore(seen));
    const size_t before = roster.workers.size();
    roster.remove(worker);
    if (roster.workers.size() == before) {
      return;
    }
    const std::vector<uint8_t> wanted = toStore(roster.encode());
    std::vector<uint8_t> now = store_->compareSet(kRosterKey, seen, wanted);
    if (now == wanted) {
      return;
    }
    seen = std::move(now);
  }
}

// The last to arrive writes down the sums. Where one is missing there is no last, and who knows of its death adds up what
// the others have written each for itself; the first sums that are written stand.
Membership::Totals Membership::sum(
    const std::string& round, const Totals& mine, const std::function<void()>& interrupted,
    const Dead& dead) {
  const std::string key = kShutdownKey + round + "/";
  asking(self_, kShuttingDown, [&] {
    store_->add(key + "started", mine.started);
    store_->add(key + "finished", mine.finished);
    store_->set(numbersKey(key, self_.id), encode(mine));
    if (store_->add(key + "arrived", 1) == static_cast<int64_t>(worldSize_)) {
      const Totals totals{store_->add(key + "started", 0), store_->add(key + "finished", 0)};
      store_->compareSet(key + "all", {}, encode(totals));
    }
  });
  awaitRound(key, interrupted, dead);
  Totals totals =
      asking(self_, kShuttingDown, [&] { return decodeTotals(store_->get(key + "all")); });
  if (totals.missing.contains(self_.id)) {
    throw std::runtime_error(
        "the RPC group has shut down without " + self_.describe() + ", which it took for dead");
  }
  return totals;
}

void Membership::completeWithout(const std::set<WorkerId>& dead, const std::string& key) {
  if (dead.empty()) {
    return;
  }
  asking(self_, kShuttingDown, [&] {
    Totals totals;
    totals.missing = dead;
    for (WorkerId id = 0; id < static_cast<WorkerId>(worldSize_); ++id) {
      if (dead.contains(id)) {
        continue;
      }
      if (!store_->check(numbersKey(key, id))) {
        return;
      }
      const Totals one = decodeTotals(store_->get(numbersKey(key, id)));
      totals.started += one.started;
      totals.finished += one.finished;
    }
    store_->compareSet(key + "all", {}, encode(totals));
  });
}

// Looks up now and then: a worker that is gone will never come, and who finds that out tells the others,
// which may have no link to it. (TCPStore can wait on its own, but logs every wait that times out.)
void Membership::awaitRound(
    const std::string& key, const std::function<void()>& interrupted, const Dead& dead) {
  const auto ready = [&] {
    return asking(self_, kShuttingDown, [&] { return store_->check(key + "all"); });
  };
  try {
    poll(*clock_, kForEver, [&] {
      if (ready()) {
        return true;
      }
      throwIfFailed();
      try {
        interrupted();
      } catch (const std::exception&) {
        // A peer that has left is a bad sign unless it left because the round is complete.
        if (!ready()) {
          throw;
        }
      }
      completeWithout(dead(), key);
      return false;
    });
  } catch (const std::exception& e) {
    tellOthers(e.what());
    throw;
  }
}

void Membership::tellOthers(const std::string& failure) {
  try {
    store_->compareSet(kFailedKey, {}, toStore(failure));
    awaitFinished(worldSize_ - 1, kFailureFarewell); // one of them is gone
  } catch (const std::exception&) {
    // The store is gone too; the others find that out by themselves.
  }
}

void Membership::throwIfFailed() {
  const bool failed = asking(self_, kShuttingDown, [&] { return store_->check(kFailedKey); });
  if (failed) {
    const std::vector<uint8_t> sentence =
        asking(self_, kShuttingDown, [&] { return store_->get(kFailedKey); });
    throw std::runtime_error(std::string(sentence.begin(), sentence.end()));
  }
}

void Membership::waitForOthersToFinish(size_t dead) {
  awaitFinished(worldSize_ - static_cast<uint32_t>(dead), kFarewell);
}

void Membership::awaitFinished(uint32_t count, std::chrono::milliseconds patience) {
  const std::string key = kShutdownKey + "finished";
  asking(self_, kShuttingDown, [&] {
    store_->add(key, 1);
    if (self_.id == 0) { // PyTorch's launchers put the store into the process of rank 0
      poll(*clock_, patience, [&] { return store_->add(key, 0) >= static_cast<int64_t>(count); });
    }
  });
}

} // namespace torchwire
