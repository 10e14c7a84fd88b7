#include "backend/peer_watch.h"

#include <algorithm>
#include <stdexcept>

namespace torchwire {
namespace {

constexpr std::chrono::seconds kLookInterval{1};

} // namespace

struct PeerWatch::Verdict {
  Mutex mutex{LockRank::peerVerdict};
  Error error GUARDED_BY(mutex);
};

PeerWatch::PeerWatch(LinkManager& links, WorkerId self, std::chrono::milliseconds timeout)
    : links_(links), self_(self), timeout_(timeout), verdict_(std::make_shared<Verdict>()) {}

bool PeerWatch::isSuspect(const PeerStatus& peer, WorkerId next) const {
  return peer.state == "idle" && (peer.traffic.linksLost > 0 || peer.record.id == next);
}

void PeerWatch::checkTime() const {
  if (timeout_.count() > 0 && Timer::Clock::now() - start_ > timeout_) {
    throw std::runtime_error(
        "the RPC group did not shut down within " + std::to_string(timeout_.count()) +
        " ms: some worker has not called rpc.shutdown() or still has active calls");
  }
}

void PeerWatch::check() const {
  const auto now = Timer::Clock::now();
  {
    MutexLock lock(verdict_->mutex);
    if (verdict_->error) {
      throw std::runtime_error(
          "the RPC group cannot shut down gracefully: " + verdict_->error.message());
    }
  }
  checkTime();
  if (now < nextLook_) {
    return;
  }
  nextLook_ = now + kLookInterval;
  const std::vector<PeerStatus> peers = links_.status(); // in the order of ranks
  if (peers.empty()) {
    return;
  }
  const auto after = std::find_if(
      peers.begin(), peers.end(), [&](const PeerStatus& p) { return p.record.id > self_; });
  const WorkerId next = (after == peers.end() ? peers.front() : *after).record.id;
  for (const PeerStatus& peer : peers) {
    if (peer.state == "left") {
      throw std::runtime_error(
          "the RPC group cannot shut down gracefully: " + peer.record.describe() +
          " has shut down without waiting for the others, as rpc.shutdown(graceful=False) does");
    }
    if (isSuspect(peer, next)) {
      links_.connect(peer.record.id, [verdict = verdict_](const Error& error) {
        MutexLock lock(verdict->mutex);
        if (error && error.code() != ErrorCode::peerLeft) {
          verdict->error = error;
        }
      });
    }
  }
}

} // namespace torchwire
