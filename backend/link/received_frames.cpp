#include "backend/link/received_frames.h"

#include <iterator>

namespace torchwire {
namespace {

// Each is a thread of the peer's that has numbered a frame and not yet sent it, or one that lost its link in between.
constexpr size_t kMaxGaps = 10000;

} // namespace

bool ReceivedFrames::add(uint64_t sequence) {
  if (sequence <= through_) {
    return false;
  }
  if (sequence != through_ + 1) {
    return addBeyond(sequence);
  }
  through_ = sequence;
  if (!beyond_.empty() && beyond_.begin()->first == through_ + 1) {
    through_ = beyond_.begin()->second;
    beyond_.erase(beyond_.begin());
  }
  return true;
}

bool ReceivedFrames::addBeyond(uint64_t sequence) {
  const auto after = beyond_.upper_bound(sequence);
  const auto before = after == beyond_.begin() ? beyond_.end() : std::prev(after);
  if (before != beyond_.end() && sequence <= before->second) {
    return false;
  }
  const bool continues = before != beyond_.end() && before->second + 1 == sequence;
  const bool precedes = after != beyond_.end() && sequence + 1 == after->first;
  const uint64_t last = precedes ? after->second : sequence;
  if (!continues && !precedes && beyond_.size() >= kMaxGaps) {
    throw FormatError("a session in which too many frames are missing");
  }
  if (continues) {
    before->second = last;
  } else {
    beyond_.emplace_hint(after, sequence, last);
  }
  if (precedes) {
    beyond_.erase(after);
  }
  return true;
}

Receipts ReceivedFrames::receipts() const {
  Receipts receipts;
  receipts.through = through_;
  for (const auto& [first, last] : beyond_) {
    receipts.beyond.push_back({first, last});
  }
  return receipts;
}

} // namespace torchwire
