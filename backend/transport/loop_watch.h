// What a Loop watches: file descriptors and times. Loop-bound, all of it.
#pragma once

#include <uv.h>

#include <chrono>
#include <functional>
#include <memory>

#include "backend/transport/loop.h"

namespace torchwire {

/// Calls back while a descriptor is ready. Does not own it: close it after the watch is gone. A forked child closes its
/// copy of the descriptor.
class FdWatch {
 public:
  enum Readiness { readable = UV_READABLE, writable = UV_WRITABLE };
  using Ready = std::function<void()>;

  /// Throws std::runtime_error when the descriptor cannot be watched.
  FdWatch(Loop& loop, int fd, Ready ready);
  ~FdWatch();
  FdWatch(const FdWatch&) = delete;
  FdWatch& operator=(const FdWatch&) = delete;

  /// Watches for these (or-ed) from now on; 0 for none. The callback may destroy the watch.
  void want(int readiness);

 private:
  static void onPoll(uv_poll_t* handle, int error, int readiness);

  Loop& loop_;
  const int fd_;
  uv_poll_t* const handle_; // libuv needs it a while longer than this object lives
  const std::shared_ptr<const Ready> ready_;
  int wanted_ = 0;
};

/// Calls back once, after a while.
class LoopTimer {
 public:
  explicit LoopTimer(Loop& loop);
  ~LoopTimer();
  LoopTimer(const LoopTimer&) = delete;
  LoopTimer& operator=(const LoopTimer&) = delete;

  /// The callback may destroy the timer. Starting anew forgets the earlier start.
  void start(std::chrono::milliseconds after, std::function<void()> due);
  void stop();

 private:
  Loop& loop_;
  uv_timer_t* const handle_;
  std::function<void()> due_;
};

} // namespace torchwire
