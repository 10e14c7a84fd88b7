// The threads of an agent.
#pragma once

#include <cstddef>
#include <memory>

#include "backend/base/task.h"
#include "backend/base/thread_pool.h"

namespace torchwire {

/// Pools that are apart so that what one of them waits for never waits behind it. Thread-safe.
struct Pools {
  /// `threads`: for requests, and as many for the ends of calls; `spares`: in the places of those that wait for calls.
  Pools(size_t threads, size_t spares);

  /// Starts one thread in each that serves requests, and that for deaths, so that a process that comes to its limit of threads
  /// later has what suffices.
  /// Throws std::runtime_error of threadLimits().
  void start();
  /// Runs a task that must run: on the pool; where that can have no thread, on another one; where none can, here.
  void endOn(ThreadPool& pool, Task task);
  /// Returns when nothing runs on any of them.
  void join();
  /// The same for those that run nothing of the user's.
  void joinOwn();

  ThreadPool requests;
  // What a handler waits for must not wait behind handlers. Shared with frames, which let go through it of what Python may
  // own.
  const std::shared_ptr<ThreadPool> control;
  // Functions and hooks of a backward pass may block, and wait for what `control` serves.
  ThreadPool evaluations;
  ThreadPool completions; // a handler that waits for a call must not starve its end
  ThreadPool deaths; // what is done about deaths may wait for the store
  const std::shared_ptr<ThreadPool> copies; // wait for devices; shared with what sends responses
};

} // namespace torchwire
