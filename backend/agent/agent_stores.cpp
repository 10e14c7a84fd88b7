// Agent: the stores that workers serve to each other once the rendezvous store is gone (membership/peer_stores.h).
//
// None of this counts as a call: the shutdown that needs it waits until there is none.
#include <algorithm>
#include <memory>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/base/guarded.h"
#include "backend/link/link_errors.h"
#include "backend/link/shutdown_monitor.h"
#include "backend/serve/signals.h"
#include "backend/wire/own_requests.h"

namespace torchwire {
namespace {

constexpr std::chrono::milliseconds kMinStoreTimeout{2000};
constexpr std::chrono::milliseconds kMaxStoreTimeout{60000}; // where calls have no time-out

} // namespace

void Agent::connectPeerStores() {
  peerStores_ = std::make_shared<PeerStores>(
      self_,
      PeerStores::Links{
          [this](WorkerId server, std::vector<char> request) {
            return ownCalls_.ask(
                server, own_requests::kStoreRequest, std::move(request), storeTimeout());
          },
          [this](WorkerId to, std::vector<char> request) { tellOfStore(to, std::move(request)); },
          [this] { return livingPeers(); },
          [this](WorkerId worker) { return directory_.describe(worker); }});
  ownCalls_.handle(
      own_requests::kStoreRequest,
      [this](WorkerId caller, const OwnCalls::Body& request, const OwnCalls::Reply& reply) {
        reply(peerStores_->serve(caller, request));
      });
}

/// How long a store may take to answer. Three such waits are no longer than a call: for the rendezvous store, and twice for
/// a worker that hosts that and stands still. On a busy machine it may be longer than short calls are to take.
std::chrono::milliseconds Agent::storeTimeout() const {
  const std::chrono::milliseconds timeout = getRpcTimeout();
  return timeout.count() == 0 ? kMaxStoreTimeout : std::max(timeout / 3, kMinStoreTimeout);
}

/// While this worker waits for others at the shutdown.
void Agent::checkOthers(const ShutdownMonitor& monitor) {
  peerDeaths_->expectPart();
  if (closed_) {
    throw Membership::BrokenOff(
        shutDownError().message(),
        leftError(membership_->self(), links_->ownGoodbye().reason).message());
  }
  monitor.check(storeIsGone());
  SystemClock clock(checkSignals);
  peerStores_->expectAnswers(clock, storeTimeout());
}

bool Agent::storeIsGone() const {
  return peerStores_->place().isPeer();
}

void Agent::tellOfStore(WorkerId to, std::vector<char> request) {
  guarded("telling a worker that the rendezvous store is gone", [&] {
    ownCalls_.open(to, own_requests::kStoreRequest, std::move(request), storeTimeout());
  });
}

std::set<WorkerId> Agent::livingPeers() const {
  std::set<WorkerId> living;
  for (const PeerStatus& peer : links_->status()) {
    if (!isGone(peer.state)) {
      living.insert(peer.record.id);
    }
  }
  return living;
}

} // namespace torchwire
