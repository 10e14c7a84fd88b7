// The calls of this worker that await their responses, with deadlines.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/base/timer.h"
#include "backend/call/function_table.h"
#include "backend/call/trace_log.h"
#include "backend/call/unanswered_calls.h"
#include "backend/call/waiter.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"
#include "backend/wire/undo.h"

namespace torchwire {

/// How a call ended: with a response frame, or with an error.
struct Outcome {
  Error error;
  ReceivedFrame response; // meaningful where error is not set
  std::shared_ptr<Waiter> waiter; // null: no thread waits
};

/// What a call fails with when its time is over; `sent`: its request. `whereabouts`: where it is, as far as is known.
Error timeoutError(
    std::chrono::milliseconds timeout, bool sent = true, const std::string& whereabouts = {});

/// Holds every pending call once and completes each exactly once: with the first response, at its
/// deadline, or when its peer or this worker goes. What comes later is dropped.
/// Completions run unlocked, on the thread that ended the call. Thread-safe.
class CallTable {
 public:
  /// Called once. It owns what the call holds, the future for one, and hands it on when it is called: it may be
  /// called, and is destroyed, on a loop or in the midst of a send.
  using Completion = MoveOnlyFunction<Outcome>;

  /// A call, and to whom it is.
  struct Key {
    WorkerId to;
    uint64_t id;
  };
  /// Told of tracked calls once they are out of the table, before they are completed. Returns those whose request has not
  /// been sent. On any thread, unlocked.
  using Ended = std::function<std::vector<Key>(const std::vector<Key>&)>;

  /// The timer must outlive the table's last open() and be stopped before the table goes.
  /// Calls are numbered from `firstId` on.
  explicit CallTable(Timer& timer, uint64_t firstId = 1) : timer_(timer), nextId_(firstId) {}
  CallTable(const CallTable&) = delete;
  CallTable& operator=(const CallTable&) = delete;

  struct Options {
    std::chrono::milliseconds timeout{0}; // 0: none
    bool tracked = false; // its end is told of, see whenTrackedEnd()
    bool limited = false; // and that its time is over, see whenLimitedExpire()
    // With which is noted what the call took; it outlives the table. Null: nothing is noted, nor is the call ever slow.
    FunctionMetrics* function = nullptr;
    Undo undo = {}; // is run if the call fails and has not been sent
  };
  /// Enters a call and returns its id.
  uint64_t open(WorkerId to, Options options, Completion completion) EXCLUDES(mutex_);

  /// Who is told of a limited call that has been sent and timed out. On the timer's thread, unlocked. Before the first.
  void whenLimitedExpire(std::function<void(const Key&)> expired) {
    limitedExpired_ = std::move(expired);
  }

  /// Who is told of tracked calls. Before the first of them.
  void whenTrackedEnd(Ended ended) {
    trackedEnded_ = std::move(ended);
  }

  /// Where calls are noted that have ended, while it is on. It outlives the table. Before the first call.
  void traceTo(TraceLog* trace) {
    trace_ = trace;
  }

  /// A call that has been under way for some time.
  struct Pending {
    Key key;
    const FunctionMetrics* function = nullptr;
    uint64_t thread = 0; // that has made it, as pthread_self() has it
    std::chrono::nanoseconds age{0};
    std::chrono::milliseconds timeout{0}; // 0: none
    std::string whereabouts; // as of noteWhereabouts(); empty: not known
    bool isNewlySlow = false; // for watchSlow(): this is the first look after it has taken `after`
  };
  /// Has calls looked after that take long: `slow` is told of each of them once it has taken `after` (0: of none for that),
  /// and when three quarters of its time-out are over, if that is a second or more. On the timer's thread, unlocked, some
  /// 100 ms late at most. Before the first call.
  void watchSlow(std::chrono::milliseconds after, std::function<void(std::vector<Pending>)> slow) {
    slowAfter_ = after;
    slow_ = std::move(slow);
  }
  /// What the call's error is to say if its time-out ends it: where it was.
  void noteWhereabouts(uint64_t id, std::string whereabouts) EXCLUDES(mutex_);
  /// All that are under way and have a function, the oldest first.
  std::vector<Pending> pending() const EXCLUDES(mutex_);

  /// Whether the call is under way.
  bool contains(uint64_t id) const EXCLUDES(mutex_);

  /// The calling thread is about to wait for the call: it is told by whom in the call's Outcome. False if there is no such call
  /// (any more), or another thread waits.
  bool await(uint64_t id, std::shared_ptr<Waiter> waiter) EXCLUDES(mutex_);

  /// Completes the call with a response. False if there is no such call to this worker (any more).
  bool answer(uint64_t id, WorkerId from, ReceivedFrame&& response) EXCLUDES(mutex_);

  /// Of a call that has ended otherwise than by its answer, which comes now: its undo, once, and only of the newest calls.
  std::optional<Undo> takeUnanswered(uint64_t id) EXCLUDES(mutex_);

  /// Completes one call, or all calls, with an error. The latter says of tracked calls if their request has not been sent.
  /// `answerOf`: the worker whose answer has that error; the call has to be to it.
  bool fail(uint64_t id, const Error& error, std::optional<WorkerId> answerOf = std::nullopt)
      EXCLUDES(mutex_);
  void failAll(const Error& error) EXCLUDES(mutex_);
  /// Takes out all calls to one worker. What is returned completes them with the error, on the thread that runs it; the
  /// table outlives it. `received`: which of them the worker has received, and runs or will run. `unsent`: which have not
  /// been sent; of tracked calls the table finds out by itself.
  [[nodiscard]] Task takePeer(
      WorkerId to, const Error& error, const std::unordered_set<uint64_t>& received = {},
      const std::unordered_set<uint64_t>& unsent = {}) EXCLUDES(mutex_);

  /// Completes one call with an error, as one that the program gives up.
  struct GivenUp {
    bool ended = false; // by this: else there is no such call (any more)
    std::optional<WorkerId> tell; // to whom the call was, unless its request has not been sent
  };
  GivenUp giveUp(uint64_t id, const Error& error) EXCLUDES(mutex_);

  /// Takes a call out, for its caller to complete with that error. False if it has ended.
  bool withdraw(uint64_t id, ErrorCode error) EXCLUDES(mutex_);

  size_t size() const EXCLUDES(mutex_);

 private:
  struct Call {
    WorkerId to = -1;
    Options options;
    Completion completion;
    std::shared_ptr<Waiter> waiter;
    Timer::Clock::time_point begun;
    Timer::Clock::time_point nextLook; // when somebody looks after it, if it still is under way
    Timer::Clock::time_point making; // when that began, where it is traced
    uint64_t thread = 0; // that has made it, as pthread_self() has it
    std::string whereabouts;
    bool foundSlow = false; // by a look
  };
  struct Deadline {
    Timer::Clock::time_point when;
    uint64_t id;
    bool operator>(const Deadline& other) const {
      return when > other.when;
    }
  };

  using Calls = std::unordered_map<uint64_t, Call>;
  using EndedCalls = std::vector<std::pair<uint64_t, Call>>;
  std::optional<Call> take(uint64_t id, std::optional<WorkerId> answerOf = std::nullopt)
      EXCLUDES(mutex_);
  void takeOut(Calls::iterator call, EndedCalls& ended) REQUIRES(mutex_);
  void end(uint64_t id, Call& call, Error error, ReceivedFrame response = {}) EXCLUDES(mutex_);
  void note(uint64_t id, const Call& call, ErrorCode error, std::chrono::nanoseconds served);
  static Pending pendingOf(uint64_t id, const Call& call, Timer::Clock::time_point now);
  Timer::Clock::time_point nextLookAt(const Call& call, Timer::Clock::time_point now) const;
  void lookLater(Timer::Clock::time_point when) REQUIRES(mutex_);
  void look() EXCLUDES(mutex_);
  template <typename Predicate>
  EndedCalls takeWhere(Predicate matches) EXCLUDES(mutex_);
  std::unordered_set<uint64_t> noteEnds(const EndedCalls& calls) const;
  void addDeadline(Deadline deadline) REQUIRES(mutex_);
  void arm() REQUIRES(mutex_);
  void expire() EXCLUDES(mutex_);

  Timer& timer_;
  TraceLog* trace_ = nullptr;
  std::chrono::milliseconds slowAfter_{0};
  std::function<void(std::vector<Pending>)> slow_; // null: nobody looks after calls
  Ended trackedEnded_;
  std::function<void(const Key&)> limitedExpired_;
  mutable Mutex mutex_{LockRank::callTable};
  uint64_t nextId_ GUARDED_BY(mutex_);
  Calls calls_ GUARDED_BY(mutex_);
  UnansweredCalls unanswered_ GUARDED_BY(mutex_);
  // A heap, earliest first. Calls that ended leave their entry behind until it comes up or the
  // entries outnumber the calls by far: removing it at once would cost every call a search.
  std::vector<Deadline> deadlines_ GUARDED_BY(mutex_);
  Timer::Clock::time_point armedFor_ GUARDED_BY(mutex_) = Timer::Clock::time_point::max();
  Timer::Clock::time_point lookAt_ GUARDED_BY(mutex_) = Timer::Clock::time_point::max();
};

} // namespace torchwire
