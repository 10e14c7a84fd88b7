// When each call of this worker, and each one that it served, was in which stage, and what else happened meanwhile: kept
// while someone traces.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/error.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Notes calls that have ended, while it is on. What comes when it is full is counted and lost. Thread-safe.
class TraceLog {
 public:
  using Clock = std::chrono::steady_clock;

  /// caller: a call that has ended. callee: a request that has been answered. reading: the caller has read an answer.
  enum class Kind : uint8_t { caller, callee, reading };

  struct Event {
    Kind kind = Kind::caller;
    WorkerId peer = -1; // the other side
    uint64_t callId = 0; // the caller's number for it
    uint32_t function = 0; // FunctionMetrics::id; not of reading
    // caller: when the pickling of its arguments began, when it was sent, when its answer came or it failed.
    // callee: when the request came, when it began to run, when its answer was ready.
    // reading: when that began, the same, when it ended.
    Clock::time_point begun, middle, ended;
    std::chrono::nanoseconds served{0}; // as the callee says; caller: 0 where there was no answer
    ErrorCode error = ErrorCode::none;
    uint64_t thread = 0; // that ran it or has made it, as pthread_self() has it; 0: unknown
  };

  /// What is rarer than calls, and says more.
  struct Note {
    /// pass: a backward pass, on the worker that has started it. graphTask: a worker's part in one. gradients: a request
    /// of one. rref: a request about an RRef. incident: a link that broke, or a worker that died.
    enum class Kind : uint8_t { pass, graphTask, gradients, rref, incident };

    Kind kind = Kind::incident;
    WorkerId peer = -1; // gradients, rref: the caller; incident: the worker that it is about
    uint64_t callId = 0; // gradients, rref: as in Event
    Clock::time_point begun, ended; // pass, graphTask; incident: begun alone
    std::string
        subject; // the pass; the RRef, empty where the request does not say; what has happened
    std::string
        detail; // pass, graphTask: why it has failed, if it has; rref: the fork; incident: why
  };

  /// Where it is off, events and notes are not to be made.
  bool isOn() const {
    return on_.load(std::memory_order_relaxed);
  }

  /// From now on, with room for so many. Forgets what it has.
  void start(size_t capacity) EXCLUDES(mutex_);
  /// Until now. Returns all, and how many more there were.
  struct Taken {
    std::vector<Event> events;
    std::vector<Note> notes;
    uint64_t lost = 0; // of both
  };
  Taken stop() EXCLUDES(mutex_);

  void add(const Event& event) EXCLUDES(mutex_);
  void add(Note note) EXCLUDES(mutex_);

  /// While one lives, the calling thread makes a call. Nothing where the log is off.
  class Making {
   public:
    /// Null: none.
    explicit Making(const TraceLog* log) : outer_(begun_) {
      begun_ = log != nullptr && log->isOn() ? Clock::now() : Clock::time_point();
    }
    ~Making() {
      begun_ = outer_;
    }
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;

    /// When the calling thread began to make a call; `otherwise` where it does not say.
    static Clock::time_point begunOr(Clock::time_point otherwise) {
      return begun_ == Clock::time_point() ? otherwise : begun_;
    }

   private:
    static thread_local Clock::time_point begun_;
    const Clock::time_point outer_;
  };

  /// While one lives, the calling thread reads the answer to a call. Nothing where the log is off.
  class Reading {
   public:
    Reading(TraceLog& log, WorkerId peer, uint64_t callId)
        : log_(log),
          peer_(peer),
          callId_(callId),
          begun_(log.isOn() ? Clock::now() : Clock::time_point()) {}
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    TraceLog& log_;
    const WorkerId peer_;
    const uint64_t callId_;
    const Clock::time_point begun_;
  };

 private:
  bool hasRoom() REQUIRES(mutex_);

  std::atomic<bool> on_{false};
  Mutex mutex_{LockRank::traceLog};
  size_t capacity_ GUARDED_BY(mutex_) = 0;
  Taken taken_ GUARDED_BY(mutex_);
};

} // namespace torchwire
