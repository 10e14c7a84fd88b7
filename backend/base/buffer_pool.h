// Memory for large tensors that are received.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "backend/base/annotations.h"
#include "backend/base/fork.h"
#include "backend/base/timer.h"

namespace torchwire {

/// Keeps buffers that are let go for some time, for the next tensors of that size: to write to memory that is mapped
/// already is 3 to 5 times as fast as to write to fresh one. Large buffers are on huge pages where the system gives them.
/// Buffers may outlive the pool, also in a forked child, which gives its copies back to the system. Thread-safe; a buffer may be let go under any lock.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  using Clock = Timer::Clock;

  struct Usage {
    size_t lent = 0; // bytes
    size_t kept = 0;
  };

  /// Long enough for who sends much every few seconds.
  static constexpr std::chrono::milliseconds kKeep{10000};

  /// Keeps at most `limit` bytes, none after close(), and each buffer for `keep` to twice that. The timer must outlive
  /// that.
  BufferPool(size_t limit, Timer& timer, std::chrono::milliseconds keep = kKeep)
      : limit_(limit), timer_(timer), keep_(keep) {}
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// At least `length` bytes with any content, aligned to 64 bytes; null for none. Throws std::bad_alloc.
  std::shared_ptr<void> allocate(size_t length) EXCLUDES(mutex_);

  /// Gives back what is kept. What is lent is given back as it is let go.
  void close() EXCLUDES(mutex_);

  Usage usage() const EXCLUDES(mutex_);

 private:
  struct Buffer {
    void* memory;
    size_t size;
    Clock::time_point since; // when it was let go
  };
  using Buffers = std::deque<Buffer>;

  void* take(size_t size) EXCLUDES(mutex_);
  void giveBack(void* memory, size_t size) EXCLUDES(mutex_);
  void trimSoon() REQUIRES(mutex_);
  void trim() EXCLUDES(mutex_);
  Buffers takeOldest(Clock::time_point before, size_t atMost) REQUIRES(mutex_);
  static void unmap(const Buffers& buffers);

  const size_t limit_;
  Timer& timer_;
  const std::chrono::milliseconds keep_;
  const uint64_t generation_ = forkGeneration();
  mutable Mutex mutex_{LockRank::bufferPool};
  Buffers kept_ GUARDED_BY(mutex_); // the oldest first
  Usage usage_ GUARDED_BY(mutex_);
  bool trimming_ GUARDED_BY(mutex_) = false; // a task is set
  bool closed_ GUARDED_BY(mutex_) = false;
};

} // namespace torchwire
