// How workers find each other: the group's member list in the rendezvous store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend/membership/clock.h"
#include "backend/membership/key_value_store.h"
#include "backend/membership/proven_store.h"
#include "backend/membership/shutdown_store.h"
#include "backend/membership/totals.h"
#include "backend/wire/deaths.h"
#include "backend/wire/group_credentials.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// One worker's view of the group's entries in the store. Every store error is rethrown as
/// std::runtime_error with a sentence that says what was being done.
/// Not thread-safe: used by one thread at a time, but for what says otherwise.
class Membership {
 public:
  /// Whether the process of a worker that is on the list has ended, for all that this worker can find out: at once, or
  /// by asking its host, for which it may block for a moment.
  using HasEnded = std::function<bool(const WorkerRecord&, bool asksHost)>;

  /// `self` has no address yet; `timeout` bounds the wait for the other workers of a static group.
  Membership(
      std::unique_ptr<KeyValueStore> store, WorkerRecord self, uint32_t worldSize,
      std::chrono::milliseconds timeout,
      std::unique_ptr<Clock> clock = std::make_unique<SystemClock>(),
      HasEnded hasEnded = [](const WorkerRecord&, bool) { return false; });

  /// Agrees with the other workers on the group's keys, which links need: so before join(). `secrets` are
  /// this worker's own, of which it uses the first and accepts all; none: the one that the first worker drew counts. A
  /// worker none of whose secrets fits throws; in a static group, the others then throw the same sentence in join().
  /// Throws std::runtime_error.
  std::vector<GroupKey> agree(const std::vector<std::string>& secrets);

  /// The keys that the group's workers have of secrets of their own. Takes some 0.1 s for a short one. Throws
  /// std::runtime_error when one is too short.
  std::vector<GroupKey> keysOf(const std::vector<std::string>& secrets) const {
    return GroupCredentials::keysOf(groupId_, secrets);
  }
  /// Goes on with these, and proves anew what newcomers read of the group that runs. On any thread, as remove().
  void changeKeys(const std::vector<GroupKey>& keys);

  /// Tells the others of a static group that this worker's process begins to start, so that they see its end though it
  /// has not joined yet. Throws std::runtime_error.
  void announce();

  /// Enters this worker, which listens at `address` and at `onHost`, into the list. A static group: returns once all are
  /// there, with the same roster everywhere; if one of them cannot be in the group, throws the same sentence on every
  /// worker. Where all workers of a former group have ended, begins another in its place. A dynamic group: returns
  /// those that are there now, this worker included; those that have ended without leaving give way to it.
  /// Throws std::runtime_error.
  Roster join(const std::string& address, const HostAddress& onHost = {});
  /// Whether a static group, which then is an elastic one, ran already when this worker joined. Perhaps also if it has
  /// been among the last that the group waited for.
  bool cameLater() const {
    return cameLater_;
  }

  /// This worker cannot start: those of a static group that wait for it throw the sentence in join(). Does nothing where
  /// the group runs or cannot start anyway, nor where the store does not answer.
  void giveUpStart(const std::string& why);

  /// Takes this worker off a dynamic group's list.
  void leave();

  /// Takes a worker that is dead off a dynamic group's list, so that another one can have its name and its rank. Does
  /// nothing if it is not on it. On any thread: as the others, and beside them.
  void remove(const WorkerRecord& dead);

  /// Writes the death of another worker down for all, unless that has been done, or this worker itself has been declared
  /// dead: returns what stands, which is of that other worker or of this one. So of two workers that cannot hear each
  /// other one stays. On any thread, as remove().
  struct Ruling {
    Death death;
    bool isNew = false; // nobody has written it down before
  };
  Ruling declareDead(const Death& death);

  /// From now on the rounds of the shutdown, sum() and what follows it, outlive the store: they go on in `peers`' stores.
  void continueWith(std::shared_ptr<PeerStores> peers) {
    rounds_.continueWith(std::move(peers));
  }

  /// Adds up the numbers that all workers of a static group pass; returns once all have that are not dead. All get the
  /// same, also of who is missing. Throws where this worker itself has been left out. In an elastic group, all are those on
  /// the list, from which who knows of a death takes the dead off; from the first sum on, nobody can join any more.
  /// `check` is called before this worker's numbers can be seen and now and then while waiting, and ends the round by
  /// throwing; its sentence is then thrown on the other workers too, unless it is LeftOut: this worker alone cannot go on.
  /// `dead` is asked as often.
  using Dead = std::function<std::set<WorkerId>()>;
  /// This worker's own program breaks the shutdown off, which means something else to the others.
  struct BrokenOff : std::runtime_error {
    BrokenOff(const std::string& here, const std::string& others);
    std::string toOthers;
  };
  struct LeftOut : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  Totals sum(
      const std::string& round, const Totals& mine, const std::function<void()>& check,
      const Dead& dead = [] { return std::set<WorkerId>(); });

  /// Runs a part of the shutdown. If that throws anything but LeftOut, the others throw the same sentence in sum(), of
  /// Interrupted one that says so; and this worker the one of another that has failed before, if there is one.
  void shutDownTogether(const std::function<void()>& part);
  /// This worker does not go on with the shutdown: the program has been interrupted.
  void interruptShutdown();

  /// Returns once all workers have got their last answer from the store, or after a while: for the
  /// worker whose process may host the store, or that serves one in its place. Those are waited for that are in the last
  /// sum and have not died since.
  void waitForOthersToFinish(const Totals& last, const Dead& dead);
  void waitForOthersToFinish() {
    waitForOthersToFinish(Totals(), [] { return std::set<WorkerId>(); });
  }

  /// What this worker tells the group of itself.
  const WorkerRecord& self() const {
    return self_;
  }

 private:
  // membership.cpp: joining and leaving.
  Roster enter();
  template <typename Value>
  Value decoded(const std::vector<uint8_t>& bytes);
  void requireOwnPlace(const Roster& roster);
  void renewCredentials(const std::vector<GroupKey>& keys);
  void replaceUnproven(Roster& roster);
  Roster currentRoster();
  bool isOver(const Roster& roster, bool isProven) const;
  void throwIfNewsOf(const Roster& over);
  std::optional<std::string> decisionAbout(const Roster& over);
  bool wasRefused();
  bool nextHasBegun();
  void listAsRefused();
  std::string keyOf(const std::string& name) const {
    return keyOf(name, generation_);
  }
  static std::string keyOf(const std::string& name, int generation);
  std::string keyOfDeaths() const;
  void makeRoom(Roster& roster) const;
  void takeOff(const WorkerRecord& worker);
  void changeRoster(const std::function<bool(Roster&)>& change);

  // membership_start.cpp: whether a static group can start.
  [[noreturn]] void refuse(const std::string& objection, const Roster& roster);
  void awaitStartupDecision(std::optional<std::string> decision);
  std::optional<std::string> startupDecision(
      std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  void endStartupWithoutTheDead();
  void endStartupWithout(const WorkerRecord& dead);
  std::optional<WorkerRecord> nextMissing(const Roster& roster);
  std::optional<WorkerRecord> arrivalOf(WorkerId id);
  const WorkerRecord* nextTo(const Roster& roster) const;
  [[noreturn]] void endStartup(const std::string& objection);
  [[noreturn]] static void throwRefused(const std::string& standing, const std::string& objection);
  std::string decide(const std::string& decision);
  static std::string decisionIn(const StoreEntry& entry);
  void listAsFailed();
  std::string missingRanks();

  // membership_rounds.cpp: shutting down.
  Totals sumInOneStore(
      const std::string& round, const Totals& mine, const std::function<void()>& check,
      const Dead& dead);
  bool isComplete(const std::string& key);
  void awaitRound(const std::string& key, const std::function<void()>& check, const Dead& dead);
  void completeWithout(const std::set<WorkerId>& dead, const std::string& key);
  void completeElastic(const std::string& key);
  void lookFor(const WorkerRecord& missing);
  void completeAmong(std::set<WorkerId> others, const std::string& key);
  bool addNumbers(const std::string& key, Totals& totals);
  std::string ownKey(const std::string& round) const;
  void throwIfFailed();
  std::string giveUpShutdown(const std::string& why);
  void noteBegun();
  std::set<WorkerId> begun();
  void awaitFinished(
      const std::function<std::set<WorkerId>()>& awaited, std::chrono::milliseconds patience,
      const Dead& dead);

  const std::shared_ptr<KeyValueStore> shared_;
  ProvenStore store_{shared_};
  ProvenStore proven_{shared_}; // where only processes of this very group can have written
  const std::unique_ptr<Clock> clock_;
  ShutdownStore rounds_{proven_, *clock_};
  WorkerRecord self_;
  const uint32_t worldSize_;
  const std::chrono::milliseconds timeout_;
  const HasEnded hasEnded_;
  uint64_t groupId_ = 0;
  bool cameLater_ = false;
  Clock::TimePoint lookedFor_; // a worker that is missing
  Clock::TimePoint askedFor_; // one's host, at the start
  int generation_ = 0; // how many groups have ended before this one in the store
  bool hasBegun_ = false; // the shutdown
  std::optional<std::string> failure_; // why the group cannot shut down together
};

} // namespace torchwire
