// Whether a worker that others wait for is still there.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "backend/link/link_manager.h"

namespace torchwire {

/// Watches the peers of a static group during its shutdown, which waits for all of them. A peer whose
/// link broke is dialed again; if that fails, its process is gone and the wait is in vain. Where the wait takes
/// longer, the next worker in the order of ranks is dialed even if there never was a link, so that every worker is watched
/// by one other at least. Used by one thread.
class ShutdownMonitor {
 public:
  using Milliseconds = std::chrono::milliseconds;

  /// `timeout` bounds the whole wait; 0: none. `patience`: until the next worker is dialed. Most groups have shut down
  /// before, and a dial would meet a worker that leaves.
  ShutdownMonitor(
      LinkManager& links, WorkerId self, Milliseconds timeout,
      Milliseconds patience = Milliseconds(1000));

  /// To be called often. Throws std::runtime_error that names the peer that is gone, or says that the
  /// time is over. `mayLeave`: a peer that has left is not missed.
  void check(bool mayLeave = false) const;
  /// Only the time.
  void checkTime() const;

 private:
  struct DialResult;

  void dialSuspects(const std::vector<PeerStatus>& peers, Timer::Clock::time_point now) const;
  bool isSuspect(const PeerStatus& peer, std::optional<WorkerId> next) const;

  LinkManager& links_;
  const WorkerId self_;
  const Milliseconds timeout_;
  const Milliseconds patience_;
  const Timer::Clock::time_point start_ = Timer::Clock::now();
  mutable Timer::Clock::time_point nextLook_ = start_;
  const std::shared_ptr<DialResult> dialResult_; // shared with dials that end later
};

} // namespace torchwire
