// Agent: the stores that workers serve to each other once the rendezvous store is gone (membership/peer_stores.h).
//
// None of this counts as a call: the shutdown that needs it waits until there is none.
#include <algorithm>
#include <memory>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/agent/call_end.h"
#include "backend/base/guarded.h"
#include "backend/codec/codec.h"
#include "backend/link/link_errors.h"
#include "backend/link/shutdown_monitor.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"
#include "backend/serve/signals.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

constexpr std::chrono::milliseconds kMinStoreTimeout{2000};
constexpr std::chrono::milliseconds kMaxStoreTimeout{60000}; // where calls have no time-out

} // namespace

void Agent::connectPeerStores() {
  peerStores_ = std::make_shared<PeerStores>(
      self_,
      PeerStores::Links{
          [this](WorkerId server, std::vector<char> request) {
            return ask(server, own_messages::kStoreRequest, std::move(request), storeTimeout());
          },
          [this](WorkerId to, std::vector<char> request) { tellOfStore(to, std::move(request)); },
          [this] { return livingPeers(); },
          [this](WorkerId worker) { return directory_.describe(worker); }});
  dispatcher_.handleOwn(own_messages::kStoreRequest, [this](WorkerId caller, Message& request) {
    std::vector<char> answer = peerStores_->serve(caller, std::as_const(request).payload());
    return completed(messageOf(std::move(answer), own_messages::kStoreReply));
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
  expectPart();
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

/// A call that does not count as one.
void Agent::openOwnCall(
    WorkerId to, rpc::MessageType type, std::vector<char> body, std::chrono::milliseconds timeout,
    CallTable::Completion completion) {
  OutgoingFrame frame =
      encodeMessage(FrameKind::request, messageOf(std::move(body), type), disposer_);
  const uint64_t callId = calls_->open(to, timeout, std::move(completion));
  setCallId(frame, callId);
  if (const Error failed = transmit(to, callId, std::move(frame), /* counted */ false)) {
    calls_->fail(callId, failed);
  }
}

/// Sends an own call, waits for its answer on the calling thread, and returns the answer's body. Throws what fails it.
std::vector<char> Agent::ask(
    WorkerId to, rpc::MessageType type, std::vector<char> body, std::chrono::milliseconds timeout) {
  const auto waiter = std::make_shared<Waiter>();
  const auto result = std::make_shared<Outcome>();
  openOwnCall(to, type, std::move(body), timeout, [waiter, result](Outcome outcome) {
    *result = std::move(outcome);
    waiter->give([] {});
  });
  waiter->await(loop_.get(), handlesSignals() ? checkSignals : std::function<void()>());
  const DecodedMessage answer = responseIn(std::move(*result), false, false);
  return std::as_const(*answer.message).payload();
}

void Agent::tellOfStore(WorkerId to, std::vector<char> request) {
  guarded("telling a worker that the rendezvous store is gone", [&] {
    openOwnCall(
        to, own_messages::kStoreRequest, std::move(request), storeTimeout(), [](const Outcome&) {});
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
