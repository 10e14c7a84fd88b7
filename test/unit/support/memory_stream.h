// Streams in memory: what a message stream talks over in its tests.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/transport/loop.h"
#include "backend/transport/stream.h"

namespace torchwire {

/// A wire with two ends, 0 and 1. A stream sits at one or both; at the other the test may speak itself.
/// Bytes move in pieces of random sizes, as far as there is room; with seed 0 all at once. Thread-safe;
/// outlived by its loop.
class MemoryWire : public std::enable_shared_from_this<MemoryWire> {
 public:
  /// `capacity`: how many bytes are under way in one direction at most.
  static std::shared_ptr<MemoryWire> make(size_t capacity, unsigned seed = 1);

  std::unique_ptr<Stream> stream(Loop& loop, int end);

  // As what sits at the end. There is always room for it.
  void put(int end, const std::string& bytes) EXCLUDES(mutex_);
  /// All that has come.
  std::string take(int end) EXCLUDES(mutex_);
  /// Goes away. The other end can still read what was put before.
  void leave(int end) EXCLUDES(mutex_);
  bool hasLeft(int end) const EXCLUDES(mutex_);

 private:
  class End;
  // What the tasks on the loop look for: null once the stream has gone.
  struct Seat {
    End* stream = nullptr; // the loop's
    bool reading = false, writing = false;
  };
  struct Side {
    std::deque<char> incoming;
    bool left = false;
    Loop* loop = nullptr;
    std::shared_ptr<Seat> seat;
  };

  MemoryWire(size_t capacity, unsigned seed)
      : capacity_(capacity), isWhole_(seed == 0), random_(seed) {}

  Progress write(int end, const iovec* parts, size_t count) EXCLUDES(mutex_);
  Progress read(int end, char* into, size_t length) EXCLUDES(mutex_);
  void setInterest(int end, bool reading, bool writing) EXCLUDES(mutex_);
  bool isReady(int end) const REQUIRES(mutex_);
  size_t roomFrom(int end) const REQUIRES(mutex_);
  size_t somePartOf(size_t most) REQUIRES(mutex_);
  void callIfReady(int end) REQUIRES(mutex_);

  const size_t capacity_;
  const bool isWhole_;
  mutable Mutex mutex_{LockRank::testStream};
  std::mt19937 random_ GUARDED_BY(mutex_);
  Side sides_[2] GUARDED_BY(mutex_);
};

} // namespace torchwire
