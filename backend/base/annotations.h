// Clang's thread-safety attributes: checked by -Wthread-safety, nothing for other compilers.
#pragma once

#include <mutex>

#include "backend/base/lock_rank.h"

#if defined(__clang__)
#define TORCHWIRE_ATTRIBUTE(x) __attribute__((x))
#else
#define TORCHWIRE_ATTRIBUTE(x)
#endif

#define GUARDED_BY(mutex) TORCHWIRE_ATTRIBUTE(guarded_by(mutex))
#define REQUIRES(...) TORCHWIRE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) TORCHWIRE_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace torchwire {

/// std::mutex under a name that Clang's analysis understands, with its place in the order of locks. Where the checks
/// are on, who takes it out of order aborts rather than wait.
class TORCHWIRE_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  explicit Mutex(LockRank rank) : rank_(rank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() TORCHWIRE_ATTRIBUTE(acquire_capability()) {
    if (kThreadChecks) [[unlikely]] {
      pushLock(rank_);
    }
    mutex_.lock();
  }
  void unlock() TORCHWIRE_ATTRIBUTE(release_capability()) {
    if (kThreadChecks) [[unlikely]] {
      popLock(rank_);
    }
    mutex_.unlock(); // last: whoever waits for it may destroy it then
  }

 private:
  const LockRank rank_;
  std::mutex mutex_;
};

/// Holds a Mutex for a scope; can be released early, for callbacks that must run unlocked.
class TORCHWIRE_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TORCHWIRE_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() TORCHWIRE_ATTRIBUTE(release_capability()) {
    if (held_) {
      mutex_.unlock();
    }
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // lock and unlock make this a BasicLockable, which std::condition_variable_any waits on.
  void lock() TORCHWIRE_ATTRIBUTE(acquire_capability()) {
    mutex_.lock();
    held_ = true;
  }
  void unlock() TORCHWIRE_ATTRIBUTE(release_capability()) {
    held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

} // namespace torchwire
