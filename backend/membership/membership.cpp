#include "backend/membership/membership.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <utility>

#include "backend/base/one_line.h"
#include "backend/membership/store_access.h"
#include "backend/wire/group_credentials.h"

namespace torchwire {
namespace {

// The store's keys, all below the prefix that init_rpc puts before each group.
const std::string kPrefix = "torchwire/";
const std::string kCredentialsKey = kPrefix + "credentials"; // GroupCredentials of the first worker
// Below kPrefix, or, where a static group has ended and another begun in its place, below a longer one: see keyOf().
const std::string kDeaths =
    "deaths/"; // and the group's id: Deaths, changed by compare-and-set only
const std::string kStartupDecision =
    "startup_decision"; // "ok", or why the static group cannot start
const std::string kAccepted = "ok";
const std::string kArrived =
    "arrived/"; // and a rank: systemTime(), and a Roster of its worker alone, which has begun to start
const std::string kFailedAt =
    "startup_failed_at"; // where a worker has failed or ended: systemTime()
const std::string kRefused =
    "refused/"; // and a rank: of a worker that could not be in the group for want of its secret
constexpr size_t kMaxDecision = 1000; // bytes of what a stranger may have written
constexpr char kOfTheseProcesses[] = "these processes"; // goes into a key, so that it stays
const std::string kAnotherGroup =
    " was about to join a group that has ended, and another has begun in its place: start this "
    "worker again";

// What was being done when the store failed.
const std::string kJoining = "join the RPC group";

// How often a worker that waits for the others looks whether those that have come still live.
constexpr std::chrono::milliseconds kLookAtStart{500};
// How often it asks the host of one of them, where the process is not to be seen.
constexpr std::chrono::milliseconds kAskAtStart{2000};
// In that time those who wait for the startup decision look it up.
constexpr std::chrono::milliseconds kFarewellAtStart{300};

/// A time that anyone may have written; for ever if it is none.
int64_t timeIn(const std::string& text) {
  int64_t time = std::numeric_limits<int64_t>::max();
  std::from_chars(text.data(), text.data() + text.size(), time);
  return time;
}

/// In milliseconds, by a clock that is about the same on all hosts.
int64_t systemTime() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

/// The same of a process's start; 0 where that is not known.
int64_t startOf(const ProcessIdentity& process) {
  timespec sinceBoot{};
  if (!process.isKnown() || clock_gettime(CLOCK_BOOTTIME, &sinceBoot) != 0) {
    return 0;
  }
  const int64_t uptime = int64_t{sinceBoot.tv_sec} * 1000 + sinceBoot.tv_nsec / 1'000'000;
  return systemTime() - uptime +
      static_cast<int64_t>(process.startTime) * 1000 / sysconf(_SC_CLK_TCK);
}

} // namespace

Membership::Membership(
    std::unique_ptr<KeyValueStore> store, WorkerRecord self, uint32_t worldSize,
    std::chrono::milliseconds timeout, std::unique_ptr<Clock> clock, HasEnded hasEnded)
    : shared_(std::move(store)),
      clock_(std::move(clock)),
      self_(std::move(self)),
      worldSize_(worldSize),
      timeout_(timeout),
      hasEnded_(std::move(hasEnded)) {}

// The credentials of a dynamic group that all have left are still there. Those who come then go on with them, or,
// where they bring another secret, replace them.
std::vector<GroupKey> Membership::agree(const std::vector<std::string>& secrets) {
  const std::vector<uint8_t> mine = toStore(GroupCredentials::draw(self_, secrets).encode());
  const std::vector<uint8_t> none;
  const auto proposeInPlaceOf = [&](const std::vector<uint8_t>& expected) {
    return asking(
        self_, kJoining, [&] { return shared_->compareSet(kCredentialsKey, expected, mine); });
  };
  std::vector<uint8_t> seen = proposeInPlaceOf(none);
  for (;;) {
    const auto credentials = decoded<GroupCredentials>(seen);
    const GroupCredentials::Admission admission = credentials.admit(secrets);
    const auto objection = credentials.objectionTo(self_, admission.fit);
    if (!objection) {
      groupId_ = credentials.groupId;
      store_.proveWith(admission.keys);
      proven_.proveWith(admission.keys);
      return admission.keys;
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

void Membership::changeKeys(const std::vector<GroupKey>& keys) {
  store_.proveWith(keys);
  proven_.proveWith(keys);
  asking(self_, "change the secret of the RPC group", [&] {
    renewCredentials(keys);
    if (store_.check(
            keyOfDeaths())) { // or a worker that has declared none would not renew what others have
      store_.find(keyOfDeaths());
    }
    store_.renew();
    proven_.renew();
  });
}

void Membership::renewCredentials(const std::vector<GroupKey>& keys) {
  std::vector<uint8_t> seen = shared_->get(kCredentialsKey);
  for (;;) {
    const GroupCredentials credentials = GroupCredentials::decode(fromStore(seen));
    const std::vector<uint8_t> wanted = toStore(credentials.withKeys(keys).encode());
    if (credentials.groupId != groupId_ || seen == wanted) {
      return; // another group has begun in the place of this one, or another worker was quicker
    }
    std::vector<uint8_t> now = shared_->compareSet(kCredentialsKey, seen, wanted);
    if (now == wanted || now == seen) {
      return;
    }
    seen = std::move(now);
  }
}

void Membership::announce() {
  if (worldSize_ == 0) {
    return;
  }
  Roster alone;
  alone.worldSize = worldSize_;
  alone.workers.push_back(self_);
  std::vector<char> bytes;
  ByteWriter(bytes).number(systemTime());
  const std::vector<char> record = alone.encode();
  bytes.insert(bytes.end(), record.begin(), record.end());
  asking(self_, kJoining, [&] {
    store_.set(keyOf(kArrived + std::to_string(self_.id)), toStore(bytes));
  });
}

Roster Membership::join(const std::string& address, const HostAddress& onHost) {
  self_.address = address;
  self_.onHost = onHost;
  Roster entered = enter();
  if (!entered.isStatic()) {
    return entered;
  }
  cameLater_ = entered.isElastic() &&
      asking(self_, kJoining, [&] { return store_.check(keyOf(kStartupDecision)); });
  if (entered.isComplete()) {
    decide(kAccepted);
  }
  awaitStartupDecision();
  Roster roster = currentRoster();
  requireOwnPlace(roster);
  return roster;
}

/// What the store holds may be of an earlier group, which had the same secret. What is written from now on is proven by
/// a key that is of this group's processes alone, where these stay the same.
void Membership::requireOwnPlace(const Roster& roster) {
  if (roster.isElastic()) {
    return; // this worker may have been taken off it meanwhile
  }
  const WorkerRecord* own = roster.find(self_.id);
  if (own == nullptr || own->incarnation != self_.incarnation || !roster.isComplete()) {
    throw std::runtime_error(
        self_.describe() + " could not " + kJoining + ": " +
        UnprovenEntry(keyOf(kRosterKey)).what());
  }
  std::vector<char> incarnations;
  ByteWriter out(incarnations);
  for (const WorkerRecord& worker : roster.workers) {
    out.number(worker.incarnation);
  }
  proven_.deriveKeys(kOfTheseProcesses, toStore(incarnations));
}

Roster Membership::enter() {
  StoreEntry seen;
  for (;;) {
    Roster roster = seen.bytes.empty() ? Roster() : decoded<Roster>(seen.value);
    if (isOver(roster, seen.proven)) {
      throwIfNewsOf(roster);
      ++generation_;
      seen = {};
      continue;
    }
    if (!seen.bytes.empty() && !seen.proven) {
      replaceUnproven(roster);
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
      refuse(self_.describe() + kAnotherGroup, roster);
    }
    roster.workers.push_back(self_);
    const std::vector<uint8_t> wanted = toStore(roster.encode());
    StoreEntry now =
        asking(self_, kJoining, [&] { return store_.exchange(keyOf(kRosterKey), seen, wanted); });
    if (now.proven && now.value == wanted) {
      return roster;
    }
    seen = std::move(now); // someone else was quicker
  }
}

/// Of a dynamic group that had another secret, and that all have left, an empty list is there.
void Membership::replaceUnproven(Roster& roster) {
  if (roster.groupId == groupId_) {
    endStartup(UnprovenEntry(keyOf(kRosterKey)).what());
  }
  if (worldSize_ != 0 || !roster.workers.empty()) {
    refuse(self_.describe() + kAnotherGroup, roster);
  }
  roster = Roster();
}

// Launchers start all workers of a group anew once one has died, with the same store. Nobody of the former ones lives by then.
// No host is asked of whom a stranger may have written into the list.
bool Membership::isOver(const Roster& roster, bool isProven) const {
  const bool takesPlace = isProven &&
      (roster.find(self_.id) != nullptr || roster.find(self_.name) != nullptr || roster.closed);
  return roster.isStatic() && worldSize_ != 0 && !roster.workers.empty() &&
      std::all_of(roster.workers.begin(), roster.workers.end(), [&](const WorkerRecord& worker) {
           return hasEnded_(worker, takesPlace);
         });
}

// A worker of a group that could not start may come when the others have ended already. To one that a launcher starts anew
// that is no news: another was on the list in its place, others have begun the next group, or its process is the younger.
void Membership::throwIfNewsOf(const Roster& over) {
  if (over.find(self_.id) != nullptr || wasRefused() || nextHasBegun()) {
    return;
  }
  const auto decision = self_.isElastic() ? startupDecision() : decisionAbout(over);
  if (!decision || *decision == kAccepted) {
    return;
  }
  const int64_t failedAt = asking(self_, kJoining, [&] {
    if (!store_.check(keyOf(kFailedAt))) {
      return std::numeric_limits<int64_t>::max();
    }
    const std::vector<uint8_t> time = store_.find(keyOf(kFailedAt)).value;
    return timeIn(std::string(time.begin(), time.end()));
  });
  if (startOf(self_.process) > failedAt) {
    return;
  }
  listAsRefused();
  throw std::runtime_error(*decision);
}

/// Of one that ended before any other could see it, this worker says so.
std::optional<std::string> Membership::decisionAbout(const Roster& over) {
  auto decision = startupDecision();
  for (const WorkerRecord& worker : over.workers) {
    if (!decision && arrivalOf(worker.id)) {
      endStartupWithout(worker);
      decision = startupDecision();
    }
  }
  return decision;
}

/// Whether one of this worker's rank was, for want of the group's secret.
bool Membership::wasRefused() {
  return asking(
      self_, kJoining, [&] { return store_.check(keyOf(kRefused + std::to_string(self_.id))); });
}

bool Membership::nextHasBegun() {
  return asking(self_, kJoining, [&] { return store_.check(keyOf(kRosterKey, generation_ + 1)); });
}

/// Enters this worker into the list of a group that cannot start, for who starts in its place.
void Membership::listAsRefused() {
  asking(self_, kJoining, [&] {
    if (!store_.canProve() || !store_.find(keyOf(kRosterKey)).proven) { // nobody would believe it
      store_.set(keyOf(kRefused + std::to_string(self_.id)), toStore(self_.name));
      return;
    }
    changeRoster([&](Roster& roster) {
      const bool isListed = std::any_of(
          roster.workers.begin(), roster.workers.end(),
          [&](const WorkerRecord& worker) { return worker.incarnation == self_.incarnation; });
      if (!isListed) {
        roster.workers.push_back(self_);
      }
      return !isListed;
    });
  });
}

/// A dynamic group that begins anew with another secret could not read what the former has left.
std::string Membership::keyOfDeaths() const {
  return keyOf(kDeaths + std::to_string(groupId_));
}

std::string Membership::keyOf(const std::string& name, int generation) {
  return generation == 0 ? kPrefix + name : kPrefix + std::to_string(generation) + "/" + name;
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
    const bool exists = store_.check(keyOf(kRosterKey)); // else get() would wait for it
    return exists ? store_.get(keyOf(kRosterKey)) : std::vector<uint8_t>();
  });
  return bytes.empty() ? Roster() : decoded<Roster>(bytes);
}

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

void Membership::awaitStartupDecision() {
  std::optional<std::string> decision;
  lookedFor_ =
      clock_->now(); // most groups are complete before a look at each process is worth its time
  poll(*clock_, timeout_, [&] {
    decision = startupDecision();
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

std::optional<std::string> Membership::startupDecision() {
  return asking(self_, kJoining, [&]() -> std::optional<std::string> {
    if (!store_.check(keyOf(kStartupDecision))) { // else find() would wait for it
      return std::nullopt;
    }
    return decisionIn(store_.find(keyOf(kStartupDecision)));
  });
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
/// process began.
std::optional<WorkerRecord> Membership::arrivalOf(WorkerId id) {
  const std::string key = keyOf(kArrived + std::to_string(id));
  const std::vector<uint8_t> bytes = asking(self_, kJoining, [&] {
    return store_.check(key) ? store_.find(key).value : std::vector<uint8_t>();
  });
  try { // it is written before a worker can have the group's key
    const std::vector<char> announced(bytes.begin(), bytes.end());
    if (ByteReader(announced).number<int64_t>() < startOf(self_.process)) {
      return std::nullopt;
    }
    return Roster::decode({announced.begin() + sizeof(int64_t), announced.end()}).workers.at(0);
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

void Membership::leave() {
  asking(self_, "leave the RPC group", [&] { takeOff(self_); });
}

void Membership::remove(const WorkerRecord& dead) {
  asking(self_, "take " + dead.describe() + ", which has died, off the list of the RPC group", [&] {
    takeOff(dead);
  });
}

void Membership::takeOff(const WorkerRecord& worker) {
  changeRoster([&](Roster& roster) {
    const size_t before = roster.workers.size();
    roster.remove(worker);
    return roster.workers.size() != before;
  });
}

/// Changes the list that is there, as it stands by then; `change` says whether there is anything to change.
void Membership::changeRoster(const std::function<bool(Roster&)>& change) {
  std::vector<uint8_t> seen = store_.get(keyOf(kRosterKey));
  for (;;) {
    Roster roster = Roster::decode(fromStore(seen));
    if (!change(roster)) {
      return;
    }
    const std::vector<uint8_t> wanted = toStore(roster.encode());
    std::vector<uint8_t> now = store_.compareSet(keyOf(kRosterKey), seen, wanted);
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
      std::vector<uint8_t> now = store_.compareSet(keyOfDeaths(), seen, wanted);
      if (now == wanted) {
        return Ruling{death, true};
      }
      seen = std::move(now);
    }
  });
}

} // namespace torchwire
