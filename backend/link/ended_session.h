// What is left of a session that has ended, until the two workers meet again.
//
//   A: request 7, with an RRef ═══ breaks          A cannot know whether B has it; its call fails
//   A: hello, "of our session 3, I had all up to 5" ═══ link of session 4 ══▶ B
//   A ◀══ welcome, "of our session 3, I had all up to 6"
//   A: request 7 has not come: what was done for it is undone
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backend/wire/handshake.h"

namespace torchwire {

/// One side of the newest session that has ended. Not thread-safe.
class EndedSession {
 public:
  /// A frame of this side's of which the other may have received nothing.
  struct Doubtful {
    uint64_t sequence;
    std::function<void()> undo;
  };
  using Undone = std::vector<std::function<void()>>;

  EndedSession() = default;
  EndedSession(FormerSession former, std::vector<Doubtful> doubtful);

  /// As this worker's hello or welcome says it.
  const FormerSession& former() const {
    return former_;
  }
  /// The other side has said the same. Returns the undoing of what it has not received, to be called unlocked, and forgets
  /// the rest.
  Undone settle(const FormerSession& peers);

 private:
  FormerSession former_;
  std::vector<Doubtful> doubtful_;
};

} // namespace torchwire
