// Threads of which exactly one runs at a time, in an order that a seed decides and on a clock of their own.
//
//   add() ─▶ ready ── drawn from the seed ──▶ running ──▶ ended
//              ▲                                 │
//              ├──────────── yield ◀─────────────┤
//              ├─ the clock ◀── sleepFor ◀───────┤
//              └─ changed() ◀── waitForChange ◀──┘
//
// The clock stands still while any thread is ready, and then jumps to when the first that sleeps wakes up.
// If none is ready and none sleeps, those that are left wait for ever. That, and a run that goes beyond its
// limits, ends all threads and is reported, rather than to hang the test.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/task.h"
#include "backend/membership/clock.h"

namespace torchwire {

/// The same seed and the same bodies make the same run. add() and run() are for the thread that made it,
/// all other methods for the body that runs.
class Scheduler {
 public:
  struct Limits {
    std::chrono::nanoseconds time = std::chrono::minutes(10); // on the scheduler's clock
    uint64_t steps = 20'000'000;
  };
  /// Thrown out of yield(), sleepFor() and waitForChange() when all threads are ended. No std::exception,
  /// so that code under test does not take it for an error of its own.
  struct Halted {};

  explicit Scheduler(unsigned seed);
  Scheduler(unsigned seed, Limits limits);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Adds a thread that begins so long after the start.
  void add(std::string name, Task body, std::chrono::nanoseconds start = {});

  /// Runs all threads until they have ended. Returns a sentence on each that did not end by itself or that
  /// ended by an exception; empty if all is well. To be called once.
  std::vector<std::string> run() EXCLUDES(mutex_);

  /// Lets any other thread that is ready go first, or none.
  void yield() EXCLUDES(mutex_);
  void sleepFor(std::chrono::nanoseconds duration) EXCLUDES(mutex_);
  /// Returns after the next changed(). `what` says what for, if that never comes.
  void waitForChange(const std::string& what) EXCLUDES(mutex_);
  /// Makes all threads ready that wait for a change.
  void changed() EXCLUDES(mutex_);

  Clock::TimePoint now() EXCLUDES(mutex_);
  /// A number from 0 to `bound` - 1 from the seed.
  uint64_t draw(uint64_t bound) EXCLUDES(mutex_);

 private:
  struct Thread {
    std::string name;
    Task body;
    std::string awaits; // what it sleeps or waits for; empty: it is ready or runs
    std::mutex turnMutex; // a plain one: it is taken by each thread at every step
    std::condition_variable turnCame;
    bool turn = false;
    std::thread thread;
  };

  void live(Thread& self) EXCLUDES(mutex_);
  void attempt(Thread& self) EXCLUDES(mutex_);
  void suspend() EXCLUDES(mutex_);
  void passOn(const Thread* self) EXCLUDES(mutex_);
  static void awaitTurn(Thread& self);
  bool isHalted() const EXCLUDES(mutex_);
  void makeReady(Thread& thread) REQUIRES(mutex_);
  Thread* chooseNext() REQUIRES(mutex_);
  void wakeSleepers() REQUIRES(mutex_);
  void haltBeyondLimits() REQUIRES(mutex_);
  void halt(const std::string& why) REQUIRES(mutex_);

  const Limits limits_;
  mutable Mutex mutex_{LockRank::test};
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  Clock::TimePoint now_ GUARDED_BY(mutex_);
  uint64_t steps_ GUARDED_BY(mutex_) = 0;
  bool halted_ GUARDED_BY(mutex_) = false;
  std::vector<std::string> complaints_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Thread*> ready_ GUARDED_BY(mutex_);
  std::multimap<Clock::TimePoint, Thread*> sleeping_ GUARDED_BY(mutex_);
  std::vector<Thread*> waiting_ GUARDED_BY(mutex_);
  Thread* running_ GUARDED_BY(mutex_) = nullptr;
};

/// The scheduler's clock, for code that takes a Clock. For the body that runs.
class ScheduledClock : public Clock {
 public:
  explicit ScheduledClock(Scheduler& scheduler) : scheduler_(scheduler) {}

  TimePoint now() override {
    return scheduler_.now();
  }
  void sleepFor(std::chrono::nanoseconds duration) override {
    scheduler_.sleepFor(duration);
  }

 private:
  Scheduler& scheduler_;
};

} // namespace torchwire
