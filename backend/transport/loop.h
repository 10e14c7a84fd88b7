// What torchwire's transports live on: one per process, on the libuv inside libtorch_cpu.
//
// One thread at a time runs the loop. It then has the loop's *role*: what is called loop-bound may be used by it alone.
//
//   keeper    the thread of the loop's own that runs it when nobody else does. It spins while traffic is hot, and else
//             sleeps until a socket or a task wakes it. It sleeps outside the role.
//   driver    a thread that waits for something which the loop brings (drive()): it takes the role meanwhile, so that
//             nobody has to be woken for it. It arms the keeper's wake-ups when it leaves.
//   standby   another thread of the loop's own, started when it is first needed. While traffic is hot the keeper runs
//             what comes in (runAside()) itself, outside the role; when that takes long, the standby becomes the keeper,
//             and who was the keeper stands by from then on.
#pragma once

#include <uv.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/driver.h"
#include "backend/base/task.h"
#include "backend/base/thread_checks.h"
#include "backend/base/thread_pool.h"
#include "backend/base/thread_role.h"
#include "backend/transport/spin_gate.h"

namespace torchwire {

/// Runs tasks, watches sockets (loop_watch.h) and looks after rings in shared memory.
/// Thread-safe, except for what is called loop-bound: only with the role.
class Loop final : public Driver {
 public:
  using Clock = SpinGate::Clock;

  /// Something in memory that no file descriptor announces. Loop-bound.
  class Poller {
   public:
    virtual ~Poller() = default;
    /// Does what there is to do; false if there was nothing.
    virtual bool poll() = 0;
    /// Asks the other side for a wakeup (over a socket that the loop watches) when something comes from
    /// now on; false if something has come already.
    virtual bool armWakeup() = 0;
    /// Somebody looks again: no wakeup is needed any more.
    virtual void disarmWakeup() {}
  };

  /// Starts the keeper; `name` is its name, at most 15 characters. When the last pointer goes, the tasks
  /// that were posted before are run, and the threads end; unless it goes on one of them, this is
  /// waited for. Throws std::runtime_error when libuv cannot start.
  static std::shared_ptr<Loop> start(const std::string& name);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Runs the task soon, with the role and never inside this call. Whoever calls keeps the loop
  /// until this returns: a task that holds a pointer may be over by then.
  void post(Task task) EXCLUDES(mutex_);
  /// As post(), but while traffic is hot the task may wait for some milliseconds, rather than wake a thread.
  void postQuietly(Task task) EXCLUDES(mutex_);

  void drive(const std::function<bool()>& isOver) override;
  void interrupt() override;

  /// Runs the task soon, as one that may block: on the keeper's thread once that has given up the role, if traffic is
  /// hot; else on the pool, which has to live until stopAside(). False: the pool has ended, the task is the caller's.
  /// Loop-bound.
  bool runAside(Task&& task, ThreadPool& pool);
  /// From now on runAside() leaves everything to the pools. Returns when no task runs aside any more, but for one that
  /// calls this itself. Not loop-bound.
  void stopAside();

  /// Whether the calling thread has the role.
  bool isLoopThread() const {
    return std::this_thread::get_id() == threadId_.load(std::memory_order_relaxed);
  }

  /// Where the checks of threads are on, aborts on any other thread. Whatever is loop-bound begins with it.
  void expectOnLoop() const {
    if (kThreadChecks && !isLoopThread()) [[unlikely]] {
      breakLoopRule();
    }
  }

  /// Loop-bound.
  uv_loop_t* uv() {
    expectOnLoop();
    return &uv_;
  }
  void add(Poller& poller);
  void remove(Poller& poller);
  /// A socket had something: more may follow at once. Loop-bound.
  void noteSocketTraffic() {
    expectOnLoop();
    socketTraffic_ = true;
  }

 private:
  class Role;
  struct Aside {
    Task task;
    ThreadPool* pool;
  };

  // loop.cpp: what whoever has the role does.
  [[noreturn]] static void breakLoopRule();
  Loop();
  ~Loop() override = default;
  bool turn();
  void lookAtSockets(bool hot);
  void pauseAfter(bool progress);
  bool runPosted() EXCLUDES(mutex_);
  bool pollAll();
  bool prepareToSleep();
  bool armWakeups();
  void noteAwake();
  void enqueue(Task task) EXCLUDES(mutex_);
  void wake();
  void closeHandles();

  // Drivers.
  std::unique_lock<std::mutex> tryRole();
  void sleepAsDriver(const std::function<bool()>& isOver, Clock::duration atMost);
  void leaveToKeeper();
  void watchForKeeper(bool watch);

  // loop_threads.cpp: the loop's own threads.
  static void end(Loop* loop);
  void stop() EXCLUDES(standbyMutex_);
  void join(size_t thread);
  void runThread(size_t self);
  bool keep();
  void takeOver();
  void noteAside(bool tookLong);
  void sleepAsKeeper(std::optional<Role>& role);
  bool mayRunAside(Clock::time_point now);
  bool startStandby() EXCLUDES(standbyMutex_);
  bool runNextAside(std::optional<Role>& role);
  void asideEnded() EXCLUDES(standbyMutex_);
  void handAsidesToPools();
  static void runOnPool(Aside aside);
  bool standBy() EXCLUDES(standbyMutex_);

  uv_loop_t uv_;
  uv_async_t wakeUp_;
  // What the keeper sleeps on: libuv's own set of descriptors, unless a driver looks after that.
  const int keeperSet_;
  std::string name_;

  // Not a Mutex: who takes it holds no lock.
  std::mutex role_;
  std::atomic<std::thread::id> threadId_{};
  std::atomic<bool> asleep_{false}; // nobody looks: post() has to wake
  std::atomic<bool> keeperDozes_{false}; // it sleeps, but wakes by itself in a moment
  std::atomic<bool> hasPosted_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> driven_{false}; // a driver has the role
  std::atomic<int> wouldDrive_{0}; // threads that wait for the keeper to give it up

  // Loop-bound.
  std::vector<Poller*> pollers_; // null: removed while polling
  SpinGate ringGate_, socketGate_;
  WaitGate waitGate_;
  bool socketTraffic_ = false;
  uint64_t events_ = 0; // turns that found something
  uint64_t eventsBefore_ = 0; // as of the keeper's last sleep
  int looks_ = 0;
  Clock::time_point now_, busy_;
  Clock::time_point keeperWakes_ = Clock::time_point::max(); // by itself
  std::vector<Task> running_;
  std::deque<Aside> asides_;
  Clock::time_point lastAside_, noAsideBefore_;
  Clock::duration usualAside_{}; // that one takes
  double longAsides_ = 0; // the share of those that took long
  bool standbyStarted_ = false;

  // Odd while the keeper runs a task aside. The one who makes it even is the keeper from then on: who has run the task,
  // or the standby.
  std::atomic<uint64_t> aside_{0};
  std::atomic<int> asidesRunning_{0}; // more than one where keepers were held up
  std::atomic<bool> asidesStopped_{false};
  std::atomic<bool> standbyReady_{false};
  std::atomic<bool> ticking_{false}; // the standby looks at the clock
  Mutex standbyMutex_{LockRank::loopStandby};
  std::condition_variable_any standbyWakes_;

  Mutex mutex_{LockRank::loop};
  std::vector<Task> posted_ GUARDED_BY(mutex_);

  std::array<std::thread, 2> threads_;
  std::atomic<size_t> endedOn_{2}; // the own thread on which the last pointer went
};

/// Gives the calling thread the loop's role while it lives. What runs meanwhile is a delivery.
class Loop::Role {
 public:
  /// Waits for the role.
  explicit Role(Loop& loop) : Role(loop, std::unique_lock(loop.role_)) {}
  /// Takes what the thread has got already.
  Role(Loop& loop, std::unique_lock<std::mutex> lock) : loop_(loop), lock_(std::move(lock)) {
    loop_.threadId_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  ~Role() {
    loop_.threadId_.store(std::thread::id(), std::memory_order_relaxed);
  }
  Role(const Role&) = delete;
  Role& operator=(const Role&) = delete;

 private:
  Loop& loop_;
  const std::unique_lock<std::mutex> lock_; // goes after the destructor has run
  const DeliverScope scope_;
};

} // namespace torchwire
