// What this worker, as the owner of RRefs, has heard of their creation and their forks. See docs/rref.md.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/error.h"
#include "backend/wire/roster.h"
#include "rref/ledger/global_id.h"

namespace torchwire {

/// The forks that keep RRefs alive on their owner: libtorch's RRefContext, outside tests.
/// The ledger calls it under its lock, so it must not call back, block or run the user's code.
class ForkTable {
 public:
  /// What a removal lets go: run the user's destructors by dropping it, once no lock is held.
  using Released = std::shared_ptr<void>;

  virtual ~ForkTable() = default;
  /// Does nothing for a fork that is there.
  virtual void add(const GlobalId& rref, const GlobalId& fork) = 0;
  /// Does nothing for a fork that is not there. The RRef's last fork takes the RRef along.
  virtual Released remove(const GlobalId& rref, const GlobalId& fork) = 0;
  /// Whether an RRef that another worker creates is known here, with neither a value nor an error yet.
  virtual bool awaitsValue(const GlobalId& rref) = 0;
};

/// Makes the messages about RRefs idempotent and their order indifferent. A sender repeats a message whose
/// answer did not come, so any may arrive twice, and a delete before what it deletes; nothing that comes
/// after a fork's delete may bring the fork back, since nobody would delete it again.
/// Thread-safe.
class ForkLedger {
 public:
  using Clock = std::chrono::steady_clock;
  using Released = ForkTable::Released;
  /// Answers a creation. Called exactly once, perhaps before the call that took it returns.
  using Answer = std::function<void()>;

  // Its sender repeats a message until it is answered, and deletes a fork only then: so what comes after the delete is an
  // earlier try, which has waited here in a queue.
  static constexpr std::chrono::seconds kMemory{600};
  // Beyond that, however fast forks come and go: at some 100 bytes each this is 3 MB.
  static constexpr size_t kMaxRemembered = 32768;

  /// `table` outlives the ledger. `now` is for tests.
  explicit ForkLedger(
      ForkTable& table, std::function<Clock::time_point()> now = [] { return Clock::now(); });

  /// A creation has come from `holder`, who shall have `fork`. True for the first of its kind: run the
  /// function, then call entered() and finished(). `answer` is called when the first has finished.
  bool begin(const GlobalId& rref, const GlobalId& fork, WorkerId holder, Answer answer)
      EXCLUDES(mutex_);
  /// The owner has entered the RRef, so its creator's fork can be too. Gives back what is to be dropped
  /// if the creator has deleted its fork meanwhile and no one else has one.
  Released entered(const GlobalId& fork) EXCLUDES(mutex_);
  /// The RRef's value or error is known, or it has none.
  void finished(const GlobalId& fork) EXCLUDES(mutex_);

  /// Keeps an RRef that has come in somebody's arguments before its creation, and may be waited for, until that has
  /// entered it. Otherwise it would go with its last early user, and the creation make another one that nobody waits
  /// for. Does nothing for others. Keeps nothing, and gives back whyNever(), where no creation is to come.
  Error keepUntilEntered(const GlobalId& rref) EXCLUDES(mutex_);
  /// Of an RRef that is not here: why no creation will bring it, or no error if one may. The worker that would have created
  /// it has died or left; or it was here, and went with its last fork.
  Error whyNever(const GlobalId& rref) const EXCLUDES(mutex_);
  /// Lets an RRef go that nobody has a fork of and that is not kept.
  Released dropUnforked(const GlobalId& rref) EXCLUDES(mutex_);

  /// A user that got the RRef from another user has told of itself.
  void add(const GlobalId& rref, const GlobalId& fork, WorkerId holder) EXCLUDES(mutex_);
  /// A user has gone.
  Released remove(const GlobalId& rref, const GlobalId& fork) EXCLUDES(mutex_);

  /// A worker has died or left. What comes of it from now on brings no fork of its back, until forgetWorker(). Gives back
  /// the RRefs that are kept for creations of its, which will not come: they are kept until reclaim().
  std::vector<GlobalId> workerGone(WorkerId worker, Error why) EXCLUDES(mutex_);
  /// Its forks go, and so do those of creations of its that still run, once these have entered their RRefs. Gives back what
  /// is to be dropped. After workerGone().
  std::vector<Released> reclaim(WorkerId worker) EXCLUDES(mutex_);
  /// The same for one fork that this worker itself has handed to it.
  Released reclaim(const GlobalId& rref, const GlobalId& fork, WorkerId holder) EXCLUDES(mutex_);
  bool isGone(WorkerId worker) const EXCLUDES(mutex_);
  bool hasGone() const EXCLUDES(mutex_);

  /// Another worker comes under the number of one that is gone. It may draw the same ids again.
  void forgetWorker(WorkerId worker) EXCLUDES(mutex_);

  struct Entry {
    GlobalId rref;
    WorkerId holder;
  };
  /// The forks whose holders have told of themselves.
  std::unordered_map<GlobalId, Entry, GlobalIdHash> holders() const EXCLUDES(mutex_);
  /// The RRefs whose function runs.
  std::vector<Entry> running() const EXCLUDES(mutex_);
  /// How many deleted forks are remembered.
  size_t remembered() const EXCLUDES(mutex_);

 private:
  struct Creation {
    GlobalId rref;
    WorkerId holder = -1;
    bool finished = false;
    bool deleted = false; // its creator has gone before it had finished
    std::vector<Answer> waiting;
  };
  struct Deleted {
    bool created; // else a creation may still come, and is to be run
    Clock::time_point when;
  };

  using Why = std::shared_ptr<const Error>;

  Released removeFork(const GlobalId& rref, const GlobalId& fork, WorkerId holder) REQUIRES(mutex_);
  void noteEnd(const GlobalId& rref, WorkerId lastHolder) REQUIRES(mutex_);
  bool runs(const GlobalId& rref) const REQUIRES(mutex_);
  Error whyNeverLocked(const GlobalId& rref) const REQUIRES(mutex_);
  void remember(const GlobalId& fork, bool created) REQUIRES(mutex_);
  void forgetOld() REQUIRES(mutex_);
  void keep(const GlobalId& rref) REQUIRES(mutex_);
  std::vector<GlobalId> keptFor(WorkerId worker) const REQUIRES(mutex_);
  Released unkeep(const GlobalId& rref) REQUIRES(mutex_);

  ForkTable& table_;
  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_{LockRank::forkLedger};
  std::unordered_map<GlobalId, Creation, GlobalIdHash> creations_ GUARDED_BY(mutex_); // by fork
  std::unordered_map<GlobalId, Entry, GlobalIdHash> holders_ GUARDED_BY(mutex_); // by fork
  std::unordered_map<GlobalId, Deleted, GlobalIdHash> deleted_ GUARDED_BY(mutex_); // by fork
  std::deque<GlobalId> oldestDeleted_ GUARDED_BY(mutex_);
  std::unordered_map<WorkerId, Why> gone_ GUARDED_BY(mutex_);
  // RRefs that have gone with their last fork.
  std::unordered_map<GlobalId, Why, GlobalIdHash> ended_ GUARDED_BY(mutex_);
  std::deque<GlobalId> oldestEnded_ GUARDED_BY(mutex_);
  // RRefs, while their function runs or has yet to come:
  std::unordered_set<GlobalId, GlobalIdHash> entered_ GUARDED_BY(mutex_);
  std::unordered_set<GlobalId, GlobalIdHash> kept_ GUARDED_BY(mutex_);
};

} // namespace torchwire
