// What is left of a session that has ended, until the two workers meet again.
//
//   A: request 7, with an RRef ═══ breaks          A cannot know whether B has it; its call fails
//   A: hello, "of our session 3, I had all up to 5" ═══ link of session 4 ══▶ B
//   A ◀══ welcome, "of our session 3, I had all up to 6"
//   A: request 7 has not come: what was done for it is undone
//
// A welcome is new. A hello may be old: it may have waited in the network while another link came and went, and then it
// says nothing of the session that this link has carried. So what it does not say counts only once a frame follows it.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/wire/handshake.h"
#include "backend/wire/undo.h"

namespace torchwire {

/// One side of the newest session that has ended, and what is in doubt of those before it. Not thread-safe.
class EndedSession {
 public:
  /// A frame of this side's of which the other may have received nothing.
  struct Doubtful {
    uint64_t session;
    uint64_t sequence; // in that one
    Undo undo;
  };
  using Undone = std::vector<Undo>;

  /// Another one has ended. Of one in which nothing has come the other side knows no more than of one that it never had: so
  /// what is known of the one before stays.
  void replace(FormerSession former, std::vector<Doubtful> doubtful);

  /// As this worker's hello or welcome says it.
  const FormerSession& former() const {
    return former_;
  }
  /// The other side has said the same. Returns the undoing of what it has not received, to be called unlocked.
  Undone settleByWelcome(const FormerSession& peers);
  Undone settleByHello(const FormerSession& peers);
  /// A frame has come on the link of the last hello. As above.
  Undone settleByFrame();
  bool awaitsFrame() const {
    return awaitsFrame_;
  }

 private:
  Undone settleUpTo(uint64_t session, const FormerSession& peers);

  FormerSession former_;
  std::vector<Doubtful> doubtful_; // the earliest first
  bool awaitsFrame_ = false;
};

} // namespace torchwire
