// Clang's thread-safety attributes: checked by -Wthread-safety, nothing for other compilers.
#pragma once

#include <mutex>

#if defined(__clang__)
#define TORCHWIRE_ATTRIBUTE(x) __attribute__((x))
#else
#define TORCHWIRE_ATTRIBUTE(x)
#endif

#define GUARDED_BY(mutex) TORCHWIRE_ATTRIBUTE(guarded_by(mutex))
#define REQUIRES(...) TORCHWIRE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) TORCHWIRE_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace torchwire {

/// std::mutex under a name that Clang's analysis understands.
class TORCHWIRE_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void lock() TORCHWIRE_ATTRIBUTE(acquire_capability()) {
    mutex_.lock();
  }
  void unlock() TORCHWIRE_ATTRIBUTE(release_capability()) {
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope; can be released early, for callbacks that must run unlocked.
class TORCHWIRE_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TORCHWIRE_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
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
