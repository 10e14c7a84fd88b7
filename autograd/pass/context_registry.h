// Which autograd contexts are open on this worker, which have been released, and who is told of a release.
//
// A context spreads with the calls that carry it. Its release spreads the same way: each worker forgets the context and
// tells those that it has exchanged calls with in it. It answers whoever told it when all of these have answered, and
// with an error if one has not: so a worker that dies or leaves before it has passed the release on has not confirmed
// it, and whoever told it tells the whole group instead. The whole group is told as well where the worker that was
// called in the context knows of nobody or can tell nobody: another process has its place, or it has gone and the call
// had been given up, which it may have run after it was told.
//
//                    call begins                     release, no call
//   unknown ─────────────────────────▶ open ──────────────────────────▶ released
//                                       ▲ │                              │    ▲
//              release, a call runs ┌───┘ │ release, a call runs         │    │ the last call ends
//              (told twice)         │     ▼                              │    │
//                                   └── ending ◀─────────────────────────┘    │
//                                         │      a late call begins           │
//                                         └───────────────────────────────────┘
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"

namespace torchwire {

using ContextId = int64_t;

/// The worker on which a context was opened with `with context()`: libtorch puts its rank into the upper 16 bits.
inline WorkerId creatorOf(ContextId id) {
  return static_cast<WorkerId>(static_cast<uint64_t>(id) >> 48U);
}

/// Knows the state of every context; the contexts themselves are kept by libtorch. Thread-safe. Held by shared_ptr:
/// answers of other workers come late.
class ContextRegistry : public std::enable_shared_from_this<ContextRegistry> {
 public:
  using Clock = std::chrono::steady_clock;
  using Workers = std::set<WorkerId>;
  using Told = std::function<void(bool confirmed)>;
  using Done = std::function<void(bool everywhere)>;

  /// A context that has been taken out of libtorch's container.
  struct Taken {
    Workers known; // with whom this worker has exchanged calls in it
    std::shared_ptr<void> content; // dropped unlocked: graphs may end in Python code
  };

  /// What the registry needs of the rest.
  struct Outside {
    /// Takes a context out of the container, where it is there. Called under the registry's lock: must not call back.
    std::function<std::optional<Taken>(ContextId)> take;
    /// Tells a worker that the context is released, and reports, exactly once, whether it has confirmed that.
    std::function<void(WorkerId, ContextId, Told)> tell;
    /// All other workers of the group.
    std::function<Workers()> peers;
    /// The context is gone from this worker.
    std::function<void(ContextId)> gone;
  };

  /// How long, and how many at most, released contexts are remembered.
  struct Limits {
    // A message of a released context that is still under way arrives within about the RPC time-out, 60 s by default,
    // or is not waited for any more; a request may have to wait for a thread as well.
    std::chrono::seconds memory{600};
    // About a megabyte. A program that releases more than 27 a second for ten minutes forgets the oldest ones sooner;
    // what a message still later leaves behind is released by whoever sent it, see ownCallEnded().
    size_t count = 16384;
  };

  ContextRegistry(Outside outside, Limits limits) : outside_(std::move(outside)), limits_(limits) {}

  /// A context is open here: by `with context()`, or by a call that carries it.
  void opened(ContextId id) EXCLUDES(mutex_);

  /// A call that is part of the context begins to run here, or is over: its response is complete.
  void callBegins(ContextId id) EXCLUDES(mutex_);
  void callEnds(ContextId id) EXCLUDES(mutex_);

  /// A call from here to `callee` that is part of the context has ended, callbacks included. If the context has been
  /// released meanwhile, the response may have opened it anew, and the call perhaps reached the callee after the
  /// callee had forgotten the release.
  void ownCallEnded(ContextId id, WorkerId callee) EXCLUDES(mutex_);
  /// A call from here to `callee` ends without an answer, and may run there later than the release comes.
  void ownCallUnanswered(ContextId id, WorkerId callee) EXCLUDES(mutex_);

  /// Releases a context here, once no call of it runs here any more, and everywhere it has gone from here. `from`: who
  /// asks for it, who need not be told. Calls `done` when all that were told have answered or cannot be reached, with
  /// whether all have confirmed it.
  void release(ContextId id, std::optional<WorkerId> from, Done done) EXCLUDES(mutex_);

  /// A worker has gone for good: nobody else would release the contexts that it has opened or that its calls have
  /// opened elsewhere. Takes note at once. The function returned releases them, which may take long: a caller that must
  /// not wait runs it on another thread.
  [[nodiscard]] std::function<void()> workerGone(WorkerId worker) EXCLUDES(mutex_);
  /// A new worker has the rank of one that has gone, and may count its contexts from the start again. As above.
  [[nodiscard]] std::function<void()> workerIsNew(WorkerId worker) EXCLUDES(mutex_);

  struct Status {
    std::chrono::duration<double> age; // since it was first seen here
    size_t calls; // that run here
    bool released; // waits for these calls
  };
  std::optional<Status> status(ContextId id) const EXCLUDES(mutex_);
  size_t remembered() const EXCLUDES(mutex_);

 private:
  struct Open {
    Clock::time_point since;
    uint64_t generation = 0; // of the group, as far as it was known here then
    size_t calls = 0;
    bool ending = false; // released, and waits for its calls
    Workers alsoTell; // besides those that the context knows
    Workers unanswered; // callees of calls that were given up
    std::vector<Done> waiting; // for the end of its calls
  };
  struct Released {
    Clock::time_point since;
    Workers unanswered; // as in Open
  };
  // A context on its way out: what is to happen once the lock is released.
  struct Closing {
    ContextId id;
    Workers tell;
    std::vector<Done> done;
    std::shared_ptr<void> content;
    bool wasThere = false; // in libtorch's container
    bool tellAll = false; // who was to be told could not pass it on
  };
  class Round;

  Open& open(ContextId id) REQUIRES(mutex_);
  bool knowsReplaced(const Workers& workers, uint64_t generation) const REQUIRES(mutex_);
  bool isReleased(ContextId id) const REQUIRES(mutex_);
  void remember(ContextId id) REQUIRES(mutex_);
  Closing takeOut(ContextId id) REQUIRES(mutex_);
  std::vector<Closing> takeOutAllOf(WorkerId creator) REQUIRES(mutex_);
  std::vector<Closing> unansweredBy(WorkerId callee) REQUIRES(mutex_);
  std::function<void()> closeLater(std::vector<Closing> closings);
  void close(Closing closing) EXCLUDES(mutex_);

  const Outside outside_;
  const Limits limits_;
  mutable Mutex mutex_{LockRank::contextRegistry};
  uint64_t generation_ GUARDED_BY(mutex_) = 0; // counts the workers that have come
  std::unordered_map<WorkerId, uint64_t> came_
      GUARDED_BY(mutex_); // the generation with which each did
  Workers gone_ GUARDED_BY(mutex_); // workers that have left or died
  std::unordered_map<ContextId, Open> open_ GUARDED_BY(mutex_);
  std::unordered_map<ContextId, Released> released_ GUARDED_BY(mutex_);
  std::deque<std::pair<Clock::time_point, ContextId>> oldest_
      GUARDED_BY(mutex_); // of released_, in order
};

} // namespace torchwire
