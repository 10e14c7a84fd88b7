#include "backend/link/shutdown_monitor.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "backend/link/link_errors.h"

namespace torchwire {
namespace {

constexpr std::chrono::seconds kLookInterval{1};
// One that has got the last round's result listens no more, and its process may go on. So does one whose own shutdown has
// failed, but of that no result comes.
constexpr int kRefusedDials = 3;

} // namespace

struct ShutdownMonitor::DialResult {
  Mutex mutex{LockRank::dialResult};
  Error error GUARDED_BY(mutex);
  std::map<WorkerId, int> refusals GUARDED_BY(mutex); // dials, because nobody listened
};

ShutdownMonitor::ShutdownMonitor(
    LinkManager& links, WorkerId self, Milliseconds timeout, Milliseconds patience)
    : links_(links),
      self_(self),
      timeout_(timeout),
      patience_(patience),
      dialResult_(std::make_shared<DialResult>()) {}

bool ShutdownMonitor::isSuspect(const PeerStatus& peer, std::optional<WorkerId> next) const {
  return peer.state == PeerState::idle && (peer.traffic.linksLost > 0 || peer.record.id == next);
}

void ShutdownMonitor::checkTime() const {
  if (timeout_.count() > 0 && Timer::Clock::now() - start_ > timeout_) {
    throw std::runtime_error(
        "the RPC group did not shut down within " + std::to_string(timeout_.count()) +
        " ms: some worker has not called rpc.shutdown() or still has active calls");
  }
}

void ShutdownMonitor::check(bool mayLeave) const {
  const auto now = Timer::Clock::now();
  {
    MutexLock lock(dialResult_->mutex);
    if (dialResult_->error) {
      throw std::runtime_error(
          "the RPC group cannot shut down gracefully: " + dialResult_->error.message());
    }
  }
  checkTime();
  std::vector<PeerStatus> peers = links_.status(); // in the order of ranks
  std::erase_if(peers, [&](const PeerStatus& p) {
    return p.state == PeerState::dead || (mayLeave && p.state == PeerState::left);
  });
  for (const PeerStatus& peer : peers) {
    if (peer.state == PeerState::left) {
      const std::string reason = links_.goodbyeOf(peer.record.id).reason;
      throw std::runtime_error(
          "the RPC group cannot shut down gracefully: " + leftError(peer.record, reason).message() +
          (reason.empty() ? " without waiting for the others" : ""));
    }
  }
  if (now >= nextLook_ && !peers.empty()) {
    nextLook_ = now + kLookInterval;
    dialSuspects(peers, now);
  }
}

void ShutdownMonitor::dialSuspects(
    const std::vector<PeerStatus>& peers, Timer::Clock::time_point now) const {
  const auto after = std::find_if(
      peers.begin(), peers.end(), [&](const PeerStatus& p) { return p.record.id > self_; });
  std::optional<WorkerId> next;
  if (now >= start_ + patience_) {
    next = (after == peers.end() ? peers.front() : *after).record.id;
  }
  for (const PeerStatus& peer : peers) {
    if (isSuspect(peer, next)) {
      links_.connect(
          peer.record.id, [dialResult = dialResult_, id = peer.record.id](const Error& error) {
            MutexLock lock(dialResult->mutex);
            const bool isGone =
                error.code() == ErrorCode::peerLeft || error.code() == ErrorCode::workerDied;
            if (error.code() == ErrorCode::nobodyListens &&
                ++dialResult->refusals[id] < kRefusedDials) {
              return;
            }
            // At a limit of this process's, or the peer's, nothing is known of the peer.
            if (error && !isGone && error.code() != ErrorCode::atLimit) {
              dialResult->error = error;
            }
          });
    }
  }
}

} // namespace torchwire
