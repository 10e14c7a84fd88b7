// To whom the forks have gone that this worker has made of its RRefs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"
#include "rref/ledger/global_id.h"

namespace torchwire {

/// Numbers as they are pickled, one behind the other, and where each ends.
struct PickledNumbers {
  std::string bytes;
  std::array<uint8_t, 6> ends{};
};

/// libtorch makes a fork when it pickles an RRef, and does not know for which worker. If that worker dies, the fork stays
/// on its owner, or keeps a user's own fork alive, for good: no message about it will come. So the forks that are pickled
/// are looked for in the messages that go out, by the bytes in which their ids are pickled. A fork that is not found, since
/// it was pickled in another way or is never sent, is only less known. Thread-safe.
class PassedForks {
 public:
  struct Fork {
    GlobalId rref;
    GlobalId fork;
    WorkerId owner;
  };

  /// An RRef has been pickled; `parent` is the worker that has done so.
  void pickled(const Fork& fork, WorkerId parent) EXCLUDES(mutex_);
  using Forks = std::vector<GlobalId>;
  /// They have been pickled for a message that there will not be. Returns those that are in no message yet.
  std::vector<Fork> withdrawn(const std::vector<Fork>& forks) EXCLUDES(mutex_);
  /// A message with this payload goes out. Returns the forks in it. libtorch takes those back that a worker sends itself.
  Forks sent(WorkerId to, std::string_view payload) EXCLUDES(mutex_) {
    return anyPickled_.load(std::memory_order_acquire) ? find(to, payload) : Forks();
  }
  /// Who got the fork has told of itself, or of its end.
  void settled(const GlobalId& fork) EXCLUDES(mutex_);
  /// Takes out what has gone to a worker, which is dead, and what it would have to confirm as their owner.
  std::vector<Fork> takeThoseOf(WorkerId worker) EXCLUDES(mutex_);
  /// Takes out what sent() has returned of a message that nobody has got after all.
  std::vector<Fork> take(const Forks& forks) EXCLUDES(mutex_);

  /// How many have gone to a worker and are not settled.
  size_t size() const EXCLUDES(mutex_);

 private:
  struct Pickled {
    Fork fork;
    WorkerId parent;
    PickledNumbers numbers;
  };
  struct Passed {
    Fork fork;
    WorkerId to;
  };

  Forks find(WorkerId to, std::string_view payload) EXCLUDES(mutex_);

  std::atomic<bool> anyPickled_{false};
  mutable Mutex mutex_{LockRank::passedForks};
  std::deque<Pickled> pickled_ GUARDED_BY(mutex_); // the newest
  std::unordered_map<GlobalId, Passed, GlobalIdHash> passed_ GUARDED_BY(mutex_);
};

} // namespace torchwire
