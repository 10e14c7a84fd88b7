#include "backend/link/ended_session.h"

#include <utility>

namespace torchwire {

void EndedSession::replace(FormerSession former, std::vector<Doubtful> doubtful) {
  awaitsFrame_ = false;
  if (!doubtful.empty()) {
    doubtfulIn_ = former.id;
    doubtful_ = std::move(doubtful);
  }
  if (former.received != Receipts()) {
    former_ = std::move(former);
  }
}

EndedSession::Undone EndedSession::settleByWelcome(const FormerSession& peers) {
  awaitsFrame_ = false;
  if (peers.id > doubtfulIn_) { // it has forgotten the one in question
    doubtful_.clear();
  }
  return settle(peers.id == doubtfulIn_ ? peers.received : Receipts());
}

EndedSession::Undone EndedSession::settleByHello(const FormerSession& peers) {
  if (peers.id >= doubtfulIn_) {
    return settleByWelcome(peers);
  }
  awaitsFrame_ = !doubtful_.empty();
  return {};
}

EndedSession::Undone EndedSession::settleByFrame() {
  awaitsFrame_ = false;
  return settle(Receipts());
}

EndedSession::Undone EndedSession::settle(const Receipts& received) {
  Undone undone;
  for (Doubtful& frame : std::exchange(doubtful_, {})) {
    if (!received.has(frame.sequence)) {
      undone.push_back(std::move(frame.undo));
    }
  }
  return undone;
}

} // namespace torchwire
