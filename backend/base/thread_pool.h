// The threads that run user code: request handlers, and the completions of this worker's own calls.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/base/driver.h"
#include "backend/base/task.h"

namespace torchwire {

/// Runs tasks on at most `capacity` threads. A thread is started only when a task arrives and all
/// others are busy, so an agent with 16 worker threads that serves one call at a time has one; and the
/// thread that went idle last gets the next task, because its caches are warm.
/// A task that waits in a BlockingScope makes room for another one: up to `spare` further threads take the places of those
/// that wait, and end when they have had nothing to do for a second.
/// A task that throws is logged; nothing escapes a thread. Thread-safe.
class ThreadPool {
 public:
  /// Calls the task, and does what is to be done before and after each. Called on the pool's threads.
  using Runner = void (*)(Task& task);

  /// `name` (at most 15 characters) is what debuggers and `top -H` show for the threads.
  ThreadPool(
      size_t capacity, std::string name, Runner runner = [](Task& task) { task(); },
      size_t spare = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Runs the task on one of the threads, soon. After join(), or if no thread can be started at all: false,
  /// and the task stays the caller's.
  bool run(Task&& task);

  /// Runs the task on the calling thread, as one of the pool's would run it and in the place of one: no more than
  /// `capacity` tasks run at a time. False if as many run already, or others wait; the task stays the caller's. Also while
  /// the pool is joined: that does not wait for the task, but the task may join.
  bool runHere(Task& task);

  /// From now on a thread that has nothing to do drives, as long as `wanted` says so, before it sleeps: so that what the
  /// driver brings finds a thread awake. `wanted` is called often, on the pool's threads: it is quick and takes no lock.
  void driveWhenIdle(std::shared_ptr<Driver> driver, std::function<bool()> wanted);

  /// Ends the threads once every accepted task has run. May be called more than once, and from a
  /// task: the calling thread then ends by itself when its task returns.
  void join();

  /// While one lives, the task that the calling thread runs waits for another thread, and does not count as running.
  /// When it ends, the task goes on at once, even where as many run as may: what runs may wait for a lock that it holds.
  /// Does nothing on a thread that runs no pool's task. Bound to its thread.
  class BlockingScope;

  /// Whether the calling thread runs a task of any pool's.
  static bool isRunningTask();

  size_t capacity() const;
  /// How many more tasks could start this instant.
  size_t idle() const;
  /// How many tasks wait in a BlockingScope.
  size_t blocked() const;

 private:
  class Core;
  const std::shared_ptr<Core> core_; // shared with the threads, one of which may outlive the pool
};

class ThreadPool::BlockingScope {
 public:
  BlockingScope();
  ~BlockingScope();
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;

 private:
  Core* const core_; // null: the thread runs no task
};

} // namespace torchwire
