#include "backend/link/ended_session.h"

#include <utility>

namespace torchwire {

EndedSession::EndedSession(FormerSession former, std::vector<Doubtful> doubtful)
    : former_(std::move(former)), doubtful_(std::move(doubtful)) {}

EndedSession::Undone EndedSession::settle(const FormerSession& peers) {
  Undone undone;
  if (peers.id <= former_.id) { // else the peer has forgotten this one
    const bool hadIt = peers.id == former_.id; // else no link of it has come about there
    for (Doubtful& frame : doubtful_) {
      if (!hadIt || !peers.received.has(frame.sequence)) {
        undone.push_back(std::move(frame.undo));
      }
    }
  }
  doubtful_.clear();
  return undone;
}

} // namespace torchwire
