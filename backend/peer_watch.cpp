#include "backend/peer_watch.h"

#include <stdexcept>

namespace torchwire {
namespace {

constexpr std::chrono::seconds kDialInterval{1};

} // namespace

struct PeerWatch::Verdict {
  Mutex mutex;
  Error error GUARDED_BY(mutex);
};

PeerWatch::PeerWatch(LinkManager& links, std::chrono::milliseconds timeout)
    : links_(links), timeout_(timeout), verdict_(std::make_shared<Verdict>()) {}

void PeerWatch::check() const {
  const auto now = Timer::Clock::now();
  {
    MutexLock lock(verdict_->mutex);
    if (verdict_->error) {
      throw std::runtime_error(
          "the RPC group cannot shut down gracefully: " + verdict_->error.message());
    }
  }
  if (timeout_.count() > 0 && now - start_ > timeout_) {
    throw std::runtime_error(
        "the RPC group did not shut down within " + std::to_string(timeout_.count()) +
        " ms: some worker has not called rpc.shutdown() or still has active calls");
  }
  if (now < nextDial_) {
    return;
  }
  nextDial_ = now + kDialInterval;
  for (const PeerStatus& peer : links_.status()) {
    if (peer.state == "idle" && peer.linksLost > 0) {
      links_.connect(peer.record.id, [verdict = verdict_](const Error& error) {
        MutexLock lock(verdict->mutex);
        verdict->error = error;
      });
    }
  }
}

} // namespace torchwire
