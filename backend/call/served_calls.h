// The requests of peers that this worker has and has not answered.
#pragma once

#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/call/function_table.h"
#include "backend/call/trace_log.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Knows each request from when it comes until it is answered, and notes how long it took. Thread-safe.
class ServedCalls {
 public:
  using Clock = std::chrono::steady_clock;

  /// queued: no thread runs it yet. running. returned: its function has, and left a future.
  enum class State : uint8_t { queued, running, returned };

  struct Request {
    WorkerId caller = -1;
    uint64_t callId = 0;
    FunctionMetrics* function = nullptr; // null: it is not counted

    /// Its function has raised, or could not run.
    void countError() const {
      if (function != nullptr) {
        function->countError();
      }
    }
    bool operator==(const Request&) const = default;
  };

 private:
  struct Entry {
    Request request;
    Clock::time_point arrived;
    std::atomic<State> state{State::queued};
    std::atomic<Clock::time_point> since; // when that began
    std::atomic<Clock::time_point> started{Clock::time_point()};
    std::atomic<uint64_t> thread{0}; // that runs it, as pthread_self() has it
    std::atomic<uint64_t> rref{0};
  };
  using Entries = std::list<Entry>;

 public:
  /// A request's place among them; it ends with the request's answer. Moved only; one thread has it at a time. It must not
  /// outlive the ServedCalls.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept
        : calls_(std::exchange(other.calls_, nullptr)), entry_(other.entry_) {}
    Ticket& operator=(Ticket&& other) noexcept {
      end();
      calls_ = std::exchange(other.calls_, nullptr);
      entry_ = other.entry_;
      return *this;
    }
    ~Ticket() {
      end();
    }

    /// Before it has ended.
    const Request& request() const {
      assert(calls_ != nullptr);
      return entry_->request;
    }
    /// The calling thread begins to run it.
    void start();
    /// Its function has returned.
    void returned();
    /// Where to note which RRef the request creates or fetches, while it runs.
    std::atomic<uint64_t>& rref() {
      return entry_->rref;
    }
    /// It is about to be answered. Returns how long this worker had it; 0 if it has ended before.
    std::chrono::nanoseconds end();

   private:
    friend class ServedCalls;
    Ticket(ServedCalls* calls, Entries::iterator entry) : calls_(calls), entry_(entry) {}

    ServedCalls* calls_ = nullptr;
    Entries::iterator entry_;
  };

  explicit ServedCalls(TraceLog& trace) : trace_(trace) {}
  ServedCalls(const ServedCalls&) = delete;
  ServedCalls& operator=(const ServedCalls&) = delete;

  Ticket add(const Request& request) EXCLUDES(mutex_);

  /// A request as it is now.
  struct Status {
    Request request;
    State state = State::queued;
    std::chrono::nanoseconds inState{0};
    std::chrono::nanoseconds age{0};
    uint64_t thread = 0; // 0: none
    uint64_t rref = 0; // a hash of the id of that which it creates or fetches; 0: none
  };
  /// The oldest first.
  std::vector<Status> all() const EXCLUDES(mutex_);
  /// Nullopt: it has not come, or has been answered.
  std::optional<Status> find(WorkerId caller, uint64_t callId) const EXCLUDES(mutex_);

 private:
  static Status statusOf(const Entry& entry, Clock::time_point now);
  std::chrono::nanoseconds remove(Entries::iterator entry) EXCLUDES(mutex_);

  TraceLog& trace_;
  mutable Mutex mutex_{LockRank::servedCalls};
  Entries entries_ GUARDED_BY(mutex_); // in the order in which they came
  Entries spare_ GUARDED_BY(mutex_); // so that most requests allocate nothing
};

} // namespace torchwire
