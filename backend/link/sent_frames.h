// The sender's half of a session: what the peer may still lack.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "backend/link/ended_session.h"
#include "backend/wire/frame.h"
#include "backend/wire/handshake.h"

namespace torchwire {

using SharedFrame = std::shared_ptr<const OutgoingFrame>;
using CallIds = std::unordered_set<uint64_t>;

/// Numbers frames, and keeps each until the peer has acknowledged it. The sum of what is kept is bounded, but a frame
/// that is larger than the bound goes alone. Whose lock guards it must not be held while a frame is dropped, since the
/// tensors in it may be Python's: frames leave by what is returned. Not thread-safe.
class SentFrames {
 public:
  explicit SentFrames(size_t limit) : limit_(limit) {}

  bool hasRoom(size_t bytes) const {
    return kept_.empty() || bytes_ + bytes <= limit_;
  }
  /// Numbers the frame and keeps it. `received`: all up to this one has come from the peer. Nothing has changed where it
  /// throws std::bad_alloc.
  SharedFrame add(OutgoingFrame frame, uint64_t received);

  /// The first frame that is not acknowledged; 0: none.
  uint64_t oldest() const {
    return acknowledged_ < last_ ? acknowledged_ + 1 : 0;
  }

  /// A response to the call has come. `acknowledgement`: of the same frame.
  void answered(uint64_t call, uint64_t acknowledgement);

  /// The peer has received all up to this one. Throws FormatError where that has not been sent.
  void acknowledge(uint64_t through);
  /// Takes frames out that are acknowledged: few at a time, so that it needs no memory. Returns how many; as long as the
  /// array is full there are more.
  using Released = std::array<SharedFrame, 8>;
  size_t release(Released& released);

  /// Why the peer cannot have received that; nullopt: it can.
  std::optional<std::string> objectionTo(const Receipts& peers) const;
  /// Where there is no objection. Takes all out that the peer has, and returns what it lacks, in order.
  struct Rest {
    std::vector<SharedFrame> lacking;
    std::vector<SharedFrame> released;
  };
  Rest resume(const Receipts& peers);

  /// The calls whose request the peer has received, and which it has not answered.
  const CallIds& receivedCalls() const {
    return received_;
  }
  /// The frames that the peer may lack, of those that can be undone.
  std::vector<EndedSession::Doubtful> doubtful(uint64_t session) const;

 private:
  struct Kept {
    uint64_t sequence;
    size_t bytes;
    SharedFrame frame;
    uint64_t call; // that it requests, until that is received or answered; else 0
  };

  bool forgetRequest(uint64_t call, size_t among);
  void noteReceived(Kept& kept);

  const size_t limit_;
  uint64_t last_ = 0; // numbered
  uint64_t acknowledged_ = 0;
  size_t bytes_ = 0; // of what is kept
  std::deque<Kept> kept_; // by sequence
  CallIds received_;
};

} // namespace torchwire
