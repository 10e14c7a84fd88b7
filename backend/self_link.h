// The link of a worker to itself.
#pragma once

#include <deque>

#include "backend/annotations.h"
#include "backend/link.h"

namespace torchwire {

/// What is sent arrives here again, in order, on the thread that sent it or on one that sent before.
/// Thread-safe.
class SelfLink final : public Link {
 public:
  void send(OutgoingFrame frame, Sent sent) override EXCLUDES(mutex_);
  void receive(Received received) override EXCLUDES(mutex_);
  void close() override EXCLUDES(mutex_);

 private:
  void deliver() EXCLUDES(mutex_);

  Mutex mutex_{LockRank::selfLink};
  bool closed_ GUARDED_BY(mutex_) = false;
  bool delivering_ GUARDED_BY(mutex_) = false; // by some thread, which looks again before it ends
  std::deque<IncomingFrame> arrived_ GUARDED_BY(mutex_);
  Received received_ GUARDED_BY(mutex_);
};

} // namespace torchwire
