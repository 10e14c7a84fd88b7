#include "backend/membership/membership.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <utility>

#include "backend/membership/startup_keys.h"
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
const std::string kRefused =
    "refused/"; // and a rank: of a worker that could not be in the group for want of its secret
constexpr char kOfTheseProcesses[] = "these processes"; // goes into a key, so that it stays
const std::string kAnotherGroup =
    " was about to join a group that has ended, and another has begun in its place: start this "
    "worker again";

/// A time that anyone may have written; for ever if it is none.
int64_t timeIn(const std::string& text) {
  int64_t time = std::numeric_limits<int64_t>::max();
  std::from_chars(text.data(), text.data() + text.size(), time);
  return time;
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
    // So that renew() proves the deaths anew, too, where this worker has declared none.
    store_.findIfThere(keyOfDeaths());
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
  awaitStartupDecision(entered.isComplete() ? std::optional(decide(kAccepted)) : std::nullopt);
  // A complete roster of a group that is not elastic does not change.
  const bool isLast = entered.isComplete() && !entered.isElastic();
  Roster roster = isLast ? std::move(entered) : currentRoster();
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
    const std::vector<uint8_t> time = store_.findIfThere(keyOf(kFailedAt)).value;
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
  const std::vector<uint8_t> bytes =
      asking(self_, kJoining, [&] { return store_.getIfThere(keyOf(kRosterKey)); });
  return bytes.empty() ? Roster() : decoded<Roster>(bytes);
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
