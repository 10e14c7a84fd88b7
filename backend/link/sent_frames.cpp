#include "backend/link/sent_frames.h"

#include <algorithm>
#include <string>
#include <utility>

namespace torchwire {
namespace {

constexpr size_t kFew = 8;

} // namespace

SharedFrame SentFrames::add(OutgoingFrame frame, uint64_t received) {
  const size_t bytes = frame.bytes();
  auto shared = std::make_shared<OutgoingFrame>(std::move(frame));
  setSequence(*shared, last_ + 1, received);
  kept_.push_back({last_ + 1, bytes, shared, isRequest(*shared) ? callIdOf(*shared) : 0});
  ++last_;
  bytes_ += bytes;
  return shared;
}

void SentFrames::acknowledge(uint64_t through) {
  if (through > last_) {
    throw FormatError(
        "frame " + std::to_string(through) + " is acknowledged, of " + std::to_string(last_) +
        " that were sent");
  }
  if (through <= acknowledged_) {
    return; // what was sent again says what was known when it was sent first
  }
  auto next = std::upper_bound(
      kept_.begin(), kept_.end(), acknowledged_,
      [](uint64_t value, const Kept& kept) { return value < kept.sequence; });
  for (; next != kept_.end() && next->sequence <= through; ++next) {
    noteReceived(*next);
  }
  acknowledged_ = through;
}

void SentFrames::noteReceived(Kept& kept) {
  if (kept.call != 0) {
    received_.insert(kept.call);
    kept.call = 0;
  }
}

void SentFrames::answered(uint64_t call, uint64_t acknowledgement) {
  // As a rule a response is the first to acknowledge its request, which is one of the oldest.
  if (forgetRequest(call, kFew)) {
    acknowledge(acknowledgement);
    return;
  }
  acknowledge(acknowledgement);
  if (received_.erase(call) ==
      0) { // the acknowledgement is still to come: one before it is missing
    forgetRequest(call, kept_.size());
  }
}

/// Looks for it only among so many of the oldest.
bool SentFrames::forgetRequest(uint64_t call, size_t among) {
  const auto end = kept_.begin() + static_cast<ptrdiff_t>(std::min(among, kept_.size()));
  const auto request =
      std::find_if(kept_.begin(), end, [&](const Kept& kept) { return kept.call == call; });
  if (request == end) {
    return false;
  }
  request->call = 0;
  return true;
}

size_t SentFrames::release(Released& released) {
  size_t count = 0;
  while (count < released.size() && !kept_.empty() && kept_.front().sequence <= acknowledged_) {
    bytes_ -= kept_.front().bytes;
    released[count++] = std::move(kept_.front().frame);
    kept_.pop_front();
  }
  return count;
}

std::optional<std::string> SentFrames::objectionTo(const Receipts& peers) const {
  const uint64_t highest = peers.beyond.empty() ? peers.through : peers.beyond.back().last;
  if (highest > last_) {
    return "the peer says that it received frame " + std::to_string(highest) + ", of " +
        std::to_string(last_) + " that were sent";
  }
  if (peers.through < acknowledged_) {
    return "the peer has acknowledged " + std::to_string(acknowledged_) +
        " frames, and says that it received " + std::to_string(peers.through);
  }
  return std::nullopt;
}

SentFrames::Rest SentFrames::resume(const Receipts& peers) {
  Rest rest;
  acknowledged_ = peers.through;
  std::deque<Kept> lacking;
  for (Kept& kept : kept_) {
    if (peers.has(kept.sequence)) {
      bytes_ -= kept.bytes;
      noteReceived(kept);
      rest.released.push_back(std::move(kept.frame));
    } else {
      rest.lacking.push_back(kept.frame);
      lacking.push_back(std::move(kept));
    }
  }
  kept_.swap(lacking);
  return rest;
}

std::vector<EndedSession::Doubtful> SentFrames::doubtful(uint64_t session) const {
  std::vector<EndedSession::Doubtful> frames;
  for (const Kept& kept : kept_) {
    if (kept.frame->undo && kept.sequence > acknowledged_) {
      frames.push_back({session, kept.sequence, kept.frame->undo});
    }
  }
  return frames;
}

} // namespace torchwire
