#include "backend/link/ended_session.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace torchwire {
namespace {

constexpr uint64_t kNewest = std::numeric_limits<uint64_t>::max();

} // namespace

void EndedSession::replace(FormerSession former, std::vector<Doubtful> doubtful) {
  awaitsFrame_ = false;
  std::move(doubtful.begin(), doubtful.end(), std::back_inserter(doubtful_));
  if (former.received != Receipts()) {
    former_ = std::move(former);
  }
}

EndedSession::Undone EndedSession::settleByWelcome(const FormerSession& peers) {
  awaitsFrame_ = false;
  return settleUpTo(kNewest, peers);
}

EndedSession::Undone EndedSession::settleByHello(const FormerSession& peers) {
  Undone undone = settleUpTo(peers.id, peers);
  awaitsFrame_ = !doubtful_.empty();
  return undone;
}

EndedSession::Undone EndedSession::settleByFrame() {
  awaitsFrame_ = false;
  return settleUpTo(kNewest, FormerSession());
}

/// Of the sessions before the other side's newest it remembers nothing: what is in doubt of them stays as it is. Of those
/// after it, it has received nothing.
EndedSession::Undone EndedSession::settleUpTo(uint64_t session, const FormerSession& peers) {
  Undone undone;
  std::vector<Doubtful> later;
  for (Doubtful& frame : std::exchange(doubtful_, {})) {
    if (frame.session > session) {
      later.push_back(std::move(frame));
    } else if (
        frame.session > peers.id ||
        (frame.session == peers.id && !peers.received.has(frame.sequence))) {
      undone.push_back(std::move(frame.undo));
    }
  }
  doubtful_ = std::move(later);
  return undone;
}

} // namespace torchwire
