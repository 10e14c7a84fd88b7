// The calls of this worker that await their responses, with deadlines.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/base/timer.h"
#include "backend/call/waiter.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// How a call ended: with a response frame, or with an error.
struct Outcome {
  Error error;
  ReceivedFrame response; // meaningful where error is not set
  std::shared_ptr<Waiter> waiter; // null: no thread waits
};

/// What a call fails with when its time is over; `sent`: its request.
Error timeoutError(std::chrono::milliseconds timeout, bool sent = true);

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

  /// Enters a call and returns its id. A time-out of 0 means none.
  /// A call that is `tracked` is told of when it ends; one that is `limited`, when its time is over.
  uint64_t open(
      WorkerId to, std::chrono::milliseconds timeout, Completion completion, bool tracked = false,
      bool limited = false) EXCLUDES(mutex_);

  /// Who is told of a limited call that has been sent and timed out. On the timer's thread, unlocked. Before the first.
  void whenLimitedExpire(std::function<void(const Key&)> expired) {
    limitedExpired_ = std::move(expired);
  }

  /// Who is told of tracked calls. Before the first of them.
  void whenTrackedEnd(Ended ended) {
    trackedEnded_ = std::move(ended);
  }

  /// Whether the call is under way.
  bool contains(uint64_t id) const EXCLUDES(mutex_);

  /// The calling thread is about to wait for the call: it is told by whom in the call's Outcome. False if there is no such call
  /// (any more), or another thread waits.
  bool await(uint64_t id, std::shared_ptr<Waiter> waiter) EXCLUDES(mutex_);

  /// Completes the call with a response. False if there is no such call to this worker (any more).
  bool answer(uint64_t id, WorkerId from, ReceivedFrame&& response) EXCLUDES(mutex_);

  /// Completes one call, all calls to one worker, or all calls with an error. The latter two say of tracked calls if their
  /// request has not been sent.
  bool fail(uint64_t id, const Error& error) EXCLUDES(mutex_);
  /// `received`: which of the calls the worker has received, and runs or will run.
  void failPeer(WorkerId to, const Error& error, const std::unordered_set<uint64_t>& received = {})
      EXCLUDES(mutex_);
  void failAll(const Error& error) EXCLUDES(mutex_);

  /// Completes one call with an error, as one that the program gives up.
  struct GivenUp {
    bool ended = false; // by this: else there is no such call (any more)
    std::optional<WorkerId> tell; // to whom the call was, unless its request has not been sent
  };
  GivenUp giveUp(uint64_t id, const Error& error) EXCLUDES(mutex_);

  /// Takes a call out, for its caller to complete. False if it has ended.
  bool withdraw(uint64_t id) EXCLUDES(mutex_);

  size_t size() const EXCLUDES(mutex_);

 private:
  struct Call {
    WorkerId to;
    std::chrono::milliseconds timeout;
    Completion completion;
    std::shared_ptr<Waiter> waiter;
    bool tracked = false;
    bool limited = false;

    /// Once the call is out of the table, and unlocked.
    void end(Error error, ReceivedFrame response = {}) {
      completion({std::move(error), std::move(response), std::move(waiter)});
    }
  };
  struct Deadline {
    Timer::Clock::time_point when;
    uint64_t id;
    bool operator>(const Deadline& other) const {
      return when > other.when;
    }
  };

  std::optional<Call> take(uint64_t id, std::optional<WorkerId> from = std::nullopt)
      EXCLUDES(mutex_);
  template <typename Predicate>
  void failWhere(
      Predicate matches, const Error& error, const std::unordered_set<uint64_t>& received = {})
      EXCLUDES(mutex_);
  using EndedCalls = std::vector<std::pair<uint64_t, Call>>;
  std::unordered_set<uint64_t> noteEnds(const EndedCalls& calls) const;
  void addDeadline(Deadline deadline) REQUIRES(mutex_);
  void arm() REQUIRES(mutex_);
  void expire() EXCLUDES(mutex_);

  Timer& timer_;
  Ended trackedEnded_;
  std::function<void(const Key&)> limitedExpired_;
  mutable Mutex mutex_{LockRank::callTable};
  uint64_t nextId_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Call> calls_ GUARDED_BY(mutex_);
  // A heap, earliest first. Calls that ended leave their entry behind until it comes up or the
  // entries outnumber the calls by far: removing it at once would cost every call a search.
  std::vector<Deadline> deadlines_ GUARDED_BY(mutex_);
  Timer::Clock::time_point armedFor_ GUARDED_BY(mutex_) = Timer::Clock::time_point::max();
};

} // namespace torchwire
