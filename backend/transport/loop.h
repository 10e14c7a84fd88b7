// The thread on which torchwire's transports live: one per process, on the libuv inside libtorch_cpu.
#pragma once

#include <uv.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/task.h"
#include "backend/base/thread_checks.h"
#include "backend/transport/spin_gate.h"

namespace torchwire {

/// Runs tasks, watches sockets (loop_watch.h) and looks after rings in shared memory. While traffic is
/// hot it spins; else it sleeps until a socket or a task wakes it, and uses no CPU.
/// Thread-safe, except for what is called loop-bound: only on the loop's own thread.
class Loop {
 public:
  /// Something in memory that no file descriptor announces. Loop-bound.
  class Poller {
   public:
    virtual ~Poller() = default;
    /// Does what there is to do; false if there was nothing.
    virtual bool poll() = 0;
    /// Asks the other side for a wakeup (over a socket that the loop watches) when something comes from
    /// now on; false if something has come already.
    virtual bool armWakeup() = 0;
  };

  /// Starts the thread; `name` is its name, at most 15 characters. When the last pointer goes, the tasks
  /// that were posted before are run, and the thread ends; unless it goes on that very thread, this is
  /// waited for. Throws std::runtime_error when libuv cannot start.
  static std::shared_ptr<Loop> start(const std::string& name);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Runs the task soon, on the loop's thread and never inside this call. Whoever calls keeps the loop
  /// until this returns: a task that holds a pointer may be over by then.
  void post(Task task) EXCLUDES(mutex_);
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
  [[noreturn]] static void breakLoopRule();
  Loop();
  ~Loop() = default;
  static void end(Loop* loop);
  void run();
  bool runPosted() EXCLUDES(mutex_);
  bool pollAll();
  bool armWakeups();
  void sleep();
  void wake();
  void closeHandles();

  uv_loop_t uv_;
  uv_async_t wakeUp_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> hasPosted_{false};
  std::atomic<std::thread::id> threadId_{};

  // Loop-bound.
  bool stopping_ = false;
  bool ownsItself_ = false; // given up on its own thread
  std::vector<Poller*> pollers_; // null: removed while polling
  SpinGate ringGate_, socketGate_;
  bool socketTraffic_ = false;
  std::vector<Task> running_;

  Mutex mutex_{LockRank::loop};
  std::vector<Task> posted_ GUARDED_BY(mutex_);

  std::thread thread_;
};

} // namespace torchwire
