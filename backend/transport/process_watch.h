// Notices that processes of this host end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "backend/base/annotations.h"
#include "backend/base/process_identity.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"

namespace torchwire {

/// Replaced: the process runs another program by now (execve), in which nothing is left of the former one's.
enum class Presence { lives, ended, replaced, unknown };
/// Of a process at this moment. Unknown: it is on another host or in another namespace, or may not be seen.
Presence presenceOf(const ProcessIdentity& process);
inline bool isOver(Presence presence) {
  return presence == Presence::ended || presence == Presence::replaced;
}

/// Watches processes by file descriptors of the kernel's (pidfd), which the loop sleeps on: it costs nothing until a
/// process ends, and then tells at once. By the kernel's order the ends of the process's sockets are there before.
/// Thread-safe.
class ProcessWatch {
 public:
  /// Called once, on the loop, when the process is over, with how: "has ended".
  using Ended = std::function<void(const std::string& how)>;
  using Key = int32_t;

  explicit ProcessWatch(std::shared_ptr<Loop> loop);
  /// Not on the loop.
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  /// Watches a process in place of the one that was watched under the same key. False: it cannot be watched, since it is
  /// on another host or in another namespace, or since this host does not let processes be watched. A process that is
  /// gone already, be it that another one has its number now, has ended.
  bool watch(Key key, const ProcessIdentity& process, Ended ended) EXCLUDES(mutex_);
  void forget(Key key) EXCLUDES(mutex_);
  /// Finds out whether the process runs another program by now, which the kernel does not announce: as its end.
  void look(Key key) EXCLUDES(mutex_);
  /// Whether a process is watched under the key, and lives as far as is known.
  bool watches(Key key) const EXCLUDES(mutex_);

  /// Forgets all. When it returns, nothing is called any more. Not on the loop.
  void stop() EXCLUDES(mutex_);

 private:
  struct Watched;

  void replace(Key key, std::shared_ptr<Watched> watched) EXCLUDES(mutex_);
  void begin(Key key, const std::shared_ptr<Watched>& watched);
  void onEnd(Key key, const std::shared_ptr<Watched>& watched, Presence presence) EXCLUDES(mutex_);

  const std::shared_ptr<Loop> loop_;
  const ProcessIdentity self_ = ProcessIdentity::ofThisProcess();
  mutable Mutex mutex_{LockRank::processWatch};
  std::map<Key, std::shared_ptr<Watched>> watched_ GUARDED_BY(mutex_);
};

} // namespace torchwire
