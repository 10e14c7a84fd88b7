// The link of a worker to itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <thread>

#include "backend/base/annotations.h"
#include "backend/link/link.h"

namespace torchwire {

/// What is sent arrives here again, in order, on the thread that sent it or on one that sent before.
/// Thread-safe.
class LoopbackLink final : public Link {
 public:
  void send(OutgoingFrame frame, Sent sent) override EXCLUDES(mutex_);
  void receive(Received received) override EXCLUDES(mutex_);
  /// Waits until no callback runs any more, but for one that the caller itself is in.
  void close() override EXCLUDES(mutex_);

 private:
  class Delivery;

  void deliver() EXCLUDES(mutex_);

  Mutex mutex_{LockRank::loopback};
  bool closed_ GUARDED_BY(mutex_) = false;
  std::thread::id deliverer_
      GUARDED_BY(mutex_); // none, or a thread that looks again before it ends
  std::condition_variable_any delivered_;
  std::deque<IncomingFrame> arrived_ GUARDED_BY(mutex_);
  Received received_ GUARDED_BY(mutex_);
};

} // namespace torchwire
