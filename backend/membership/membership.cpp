#include "backend/membership/membership.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/wire/group_credentials.h"

namespace torchwire {
namespace {

// The store's keys, all below the prefix that init_rpc puts before each group.
const std::string kPrefix = "torchwire/";
const std::string kCredentialsKey = kPrefix + "credentials"; // GroupCredentials of the first worker
// Below kPrefix, or, where a static group has ended and another begun in its place, below a longer one: see keyOf().
const std::string kRoster = "roster"; // Roster, changed by compare-and-set only
const std::string kDeaths = "deaths"; // Deaths, the same way
const std::string kStartupDecision =
    "startup_decision"; // "ok", or why the static group cannot start
const std::string kShutdown = "shutdown/"; // + round + what is counted
const std::string kFailed = kShutdown + "failed"; // why the group cannot shut down together
const std::string kAccepted = "ok";

// What was being done when the store failed.
const std::string kJoining = "join the RPC group";
const std::string kShuttingDown = "shut down together with the RPC group";

constexpr std::chrono::microseconds kMinPause{500};
constexpr std::chrono::milliseconds kMaxPause{200};
constexpr std::chrono::hours kForEver{24 * 365};
constexpr std::chrono::seconds kLookInterval{1};
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
  for (const auto* ids : {&totals.missing, &totals.present}) {
    out.number(static_cast<uint32_t>(ids->size()));
    for (const WorkerId id : *ids) {
      out.number(id);
    }
  }
  return toStore(bytes);
}

Membership::Totals decodeTotals(const std::vector<uint8_t>& value) {
  const std::vector<char> bytes = fromStore(value);
  ByteReader in(bytes);
  Membership::Totals totals;
  totals.started = in.number<int64_t>();
  totals.finished = in.number<int64_t>();
  for (auto* ids : {&totals.missing, &totals.present}) {
    for (uint32_t left = in.count(sizeof(WorkerId)); left > 0; --left) {
      ids->insert(in.number<WorkerId>());
    }
  }
  return totals;
}

std::string numbersKey(const std::string& round, WorkerId id) {
  return round + "of/" + std::to_string(id);
}

/// Another process in place of a worker of an elastic group has numbers of its own.
std::string numbersKey(const std::string& round, WorkerId id, uint64_t incarnation) {
  return numbersKey(round, id) + "/" + std::to_string(incarnation);
}

/// Runs a store operation; a failure says what could not be done.
template <typename Operation>
auto asking(const WorkerRecord& self, const std::string& what, Operation operation) {
  try {
    return operation();
  } catch (const StoreMoved&) { // that is no failure
    throw;
  } catch (const std::exception& e) {
    const std::string reason = e.what(); // PyTorch's errors append a stack trace
    throw std::runtime_error(
        self.describe() + " could not " + what +
        ": the rendezvous store (init_method, MASTER_ADDR and MASTER_PORT) did not answer: " +
        reason.substr(0, reason.find('\n')));
  }
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
  cameLater_ = entered.isElastic() &&
      asking(self_, kJoining, [&] { return store_->check(keyOf(kStartupDecision)); });
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
    if (isOver(roster)) {
      throwIfNewsOf(roster, seen);
      ++generation_;
      seen.clear();
      continue;
    }
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
        asking(self_, kJoining, [&] { return store_->compareSet(keyOf(kRoster), seen, wanted); });
    if (now == wanted) {
      return roster;
    }
    seen = std::move(now); // someone else was quicker
  }
}

// Launchers start all workers of a group anew once one has died, with the same store. Nobody of the former ones lives by then.
bool Membership::isOver(const Roster& roster) const {
  const bool takesPlace =
      roster.find(self_.id) != nullptr || roster.find(self_.name) != nullptr || roster.closed;
  return roster.isStatic() && worldSize_ != 0 && !roster.workers.empty() &&
      std::all_of(roster.workers.begin(), roster.workers.end(), [&](const WorkerRecord& worker) {
           return hasEnded_(worker, takesPlace);
         });
}

// A worker of a group that could not start may come when the others have ended already. Launchers may start it anew.
void Membership::throwIfNewsOf(Roster over, const std::vector<uint8_t>& seen) {
  const auto decision = startupDecision();
  if (!decision || *decision == kAccepted || over.find(self_.id) != nullptr) {
    return;
  }
  over.workers.push_back(self_); // for one that starts in this one's place it is no news
  asking(self_, kJoining, [&] {
    return store_->compareSet(keyOf(kRoster), seen, toStore(over.encode()));
  });
  throw std::runtime_error(*decision);
}

std::string Membership::keyOf(const std::string& name) const {
  return generation_ == 0 ? kPrefix + name : kPrefix + std::to_string(generation_) + "/" + name;
}

void Membership::makeRoom(Roster& roster) const {
  if (!roster.isOpen()) {
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
    const bool exists = store_->check(keyOf(kRoster)); // else get() would wait for it
    return exists ? store_->get(keyOf(kRoster)) : std::vector<uint8_t>();
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
    return store_->compareSet(keyOf(kStartupDecision), {}, toStore(decision));
  });
  return std::string(standing.begin(), standing.end());
}

void Membership::awaitStartupDecision() {
  std::optional<std::string> decision;
  poll(*clock_, timeout_, [&] {
    decision = startupDecision();
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

std::optional<std::string> Membership::startupDecision() {
  return asking(self_, kJoining, [&]() -> std::optional<std::string> {
    if (!store_->check(keyOf(kStartupDecision))) { // else get() would wait for it
      return std::nullopt;
    }
    const std::vector<uint8_t> bytes = store_->get(keyOf(kStartupDecision));
    return std::string(bytes.begin(), bytes.end());
  });
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
  std::vector<uint8_t> seen = store_->get(keyOf(kRoster));
  for (;;) {
    Roster roster = Roster::decode(fromStore(seen));
    const size_t before = roster.workers.size();
    roster.remove(worker);
    if (roster.workers.size() == before) {
      return;
    }
    const std::vector<uint8_t> wanted = toStore(roster.encode());
    std::vector<uint8_t> now = store_->compareSet(keyOf(kRoster), seen, wanted);
    if (now == wanted) {
      return;
    }
    seen = std::move(now);
  }
}

Membership::Ruling Membership::declareDead(const Death& death) {
  return asking(self_, "tell the RPC group that a worker has died", [&] {
    std::vector<uint8_t> seen;
    for (;;) {
      Deaths deaths = seen.empty() ? Deaths() : Deaths::decode(fromStore(seen));
      if (const Death* own = deaths.find(self_.id, self_.incarnation)) {
        return Ruling{*own};
      }
      if (const Death* standing = deaths.find(death.id, death.incarnation)) {
        return Ruling{*standing};
      }
      deaths.add(death);
      const std::vector<uint8_t> wanted = toStore(deaths.encode());
      std::vector<uint8_t> now = store_->compareSet(keyOf(kDeaths), seen, wanted);
      if (now == wanted) {
        return Ruling{death, true};
      }
      seen = std::move(now);
    }
  });
}

// The last to arrive writes down the sums. Where one is missing there is no last, and who knows of its death adds up what
// the others have written each for itself; the first sums that are written stand.
Membership::Totals Membership::sum(
    const std::string& round, const Totals& mine, const std::function<void()>& interrupted,
    const Dead& dead) {
  return whereverItIs([&] { return sumInOneStore(round, mine, interrupted, dead); });
}

std::string Membership::ownKey(const std::string& round) const {
  const bool byIncarnation = self_.isElastic() && !rounds_.others();
  return byIncarnation ? numbersKey(round, self_.id, self_.incarnation)
                       : numbersKey(round, self_.id);
}

Membership::Totals Membership::sumInOneStore(
    const std::string& round, const Totals& mine, const std::function<void()>& interrupted,
    const Dead& dead) {
  const std::string key = keyOf(kShutdown) + round + "/";
  asking(self_, kShuttingDown, [&] {
    rounds_.add(key + "started", mine.started);
    rounds_.add(key + "finished", mine.finished);
    rounds_.set(ownKey(key), encode(mine));
    const bool isLast = rounds_.add(key + "arrived", 1) == static_cast<int64_t>(worldSize_);
    if (isLast && !self_.isElastic()) {
      const Totals totals{rounds_.add(key + "started", 0), rounds_.add(key + "finished", 0)};
      rounds_.compareSet(key + "all", {}, encode(totals));
    }
  });
  awaitRound(key, interrupted, dead);
  const std::vector<uint8_t> all =
      asking(self_, kShuttingDown, [&] { return rounds_.get(key + "all"); });
  rounds_.keep(key + "all", all);
  Totals totals = decodeTotals(all);
  if (totals.missing.contains(self_.id) ||
      (self_.isElastic() && !totals.present.contains(self_.id))) {
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
      if (!dead.contains(id) && !addNumbers(numbersKey(key, id), totals)) {
        return;
      }
    }
    rounds_.compareSet(key + "all", {}, encode(totals));
  });
}

/// False where they are not there yet.
bool Membership::addNumbers(const std::string& key, Totals& totals) {
  if (!rounds_.check(key)) {
    return false;
  }
  const Totals one = decodeTotals(rounds_.get(key));
  totals.started += one.started;
  totals.finished += one.finished;
  return true;
}

// All on the list, as it stands when it is closed, or later without the dead: who has not come to this round is waited for.
void Membership::completeElastic(const std::string& key) {
  if (auto others = rounds_.others()) {
    completeAmong(std::move(*others), key);
    return;
  }
  asking(self_, kShuttingDown, [&] {
    const std::vector<uint8_t> seen = rounds_.get(keyOf(kRoster));
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
      if (rounds_.compareSet(keyOf(kRoster), seen, wanted) != wanted) {
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
  if (hasEnded_(missing, /* isRival */ true)) {
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
    const std::string& key, const std::function<void()>& interrupted, const Dead& dead) {
  const auto ready = [&] {
    return asking(self_, kShuttingDown, [&] { return rounds_.check(key + "all"); });
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
      if (self_.isElastic()) {
        completeElastic(key);
      } else {
        completeWithout(dead(), key);
      }
      return false;
    });
  } catch (const StoreMoved&) {
    throw;
  } catch (const LeftOut&) {
    throw;
  } catch (const std::exception& e) {
    tellOthers(e.what());
    throw;
  }
}

void Membership::tellOthers(const std::string& failure) {
  try {
    whereverItIs([&] { return rounds_.compareSet(keyOf(kFailed), {}, toStore(failure)); });
    awaitFinished(worldSize_ - 1, kFailureFarewell); // one of them is gone
  } catch (const std::exception&) {
    // The store is gone too; the others find that out by themselves.
  }
}

void Membership::throwIfFailed() {
  const bool failed = asking(self_, kShuttingDown, [&] { return rounds_.check(keyOf(kFailed)); });
  if (failed) {
    const std::vector<uint8_t> sentence =
        asking(self_, kShuttingDown, [&] { return rounds_.get(keyOf(kFailed)); });
    throw std::runtime_error(std::string(sentence.begin(), sentence.end()));
  }
}

void Membership::waitForOthersToFinish(const Totals& last) {
  const size_t count = self_.isElastic() ? last.present.size() : worldSize_ - last.missing.size();
  try {
    awaitFinished(static_cast<uint32_t>(count), kFarewell);
  } catch (const StoreMoved&) {
    return; // the store is gone: nobody depends on this worker for it any more
  }
}

void Membership::awaitFinished(uint32_t count, std::chrono::milliseconds patience) {
  const std::string key = keyOf(kShutdown) + "finished";
  asking(self_, kShuttingDown, [&] {
    rounds_.add(key, 1);
    if (rounds_.isServedBy(self_.id)) {
      poll(*clock_, patience, [&] {
        return rounds_.add(key, 0) >= static_cast<int64_t>(count) || !rounds_.isWanted();
      });
    }
  });
}

} // namespace torchwire
