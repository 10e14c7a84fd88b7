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
#include "backend/transport/processes.h"

namespace torchwire {

/// Watches processes by file descriptors of the kernel's (pidfd), which the loop sleeps on: it costs nothing until a
/// process ends, and then tells at once. By the kernel's order the ends of the process's sockets are there before.
/// It calls on the loop.
class ProcessWatch final : public Processes {
 public:
  explicit ProcessWatch(std::shared_ptr<Loop> loop);
  /// Not on the loop.
  ~ProcessWatch() override;
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  bool watch(Key key, const ProcessIdentity& process, Ended ended) override EXCLUDES(mutex_);
  void forget(Key key) override EXCLUDES(mutex_);
  void look(Key key) override EXCLUDES(mutex_);
  bool watches(Key key) const override EXCLUDES(mutex_);

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
