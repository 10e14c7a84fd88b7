#include "backend/wire/frame.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "backend/base/aligned_memory.h"

namespace torchwire {
namespace {

// See FrameHeader::write.
constexpr size_t kTimeOffset = 2;
constexpr size_t kCallIdOffset = 8;
constexpr size_t kSequenceOffset = FrameHeader::kShortSize;
constexpr size_t kAcknowledgedOffset = kSequenceOffset + sizeof(uint64_t);

// In 16 bits.
constexpr std::chrono::milliseconds kTimeUnit{16};

bool isNumbered(FrameKind kind) {
  return kind == FrameKind::request || kind == FrameKind::response ||
      kind == FrameKind::acknowledge;
}

// Microseconds in 16 bits: 11 of a number, and 5 that say how often it is doubled.
constexpr int kNumberBits = 11;

uint16_t packed(std::chrono::nanoseconds time) {
  constexpr int64_t kLongest = int64_t{1} << 40; // 12 days
  const auto microseconds = static_cast<uint64_t>(std::clamp<int64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(time).count(), 0, kLongest));
  const int doublings = std::max(0, static_cast<int>(std::bit_width(microseconds)) - kNumberBits);
  return static_cast<uint16_t>(
      (doublings << kNumberBits) | static_cast<int>(microseconds >> doublings));
}

std::chrono::microseconds unpacked(uint16_t bits) {
  const uint64_t number = bits & ((1U << kNumberBits) - 1);
  return std::chrono::microseconds(number << (bits >> kNumberBits));
}

template <typename Pieces>
size_t totalLength(const Pieces& pieces) {
  size_t total = 0;
  for (const auto& piece : pieces) {
    total += piece.length;
  }
  return total;
}

} // namespace

Blob allocateBlob(size_t length) {
  return Blob{allocateAligned(length), length};
}

size_t OutgoingFrame::bytes() const {
  return head.size() + totalLength(payloads) + totalLength(tensors);
}

size_t IncomingFrame::bytes() const {
  size_t total = head.size() + totalLength(tensors);
  for (const auto& payload : payloads) {
    total += payload.size();
  }
  return total;
}

IncomingFrame loopBack(OutgoingFrame frame) {
  IncomingFrame in;
  in.head = std::move(frame.head);
  for (const Segment& payload : frame.payloads) {
    const auto* bytes = static_cast<const char*>(payload.data);
    in.payloads.emplace_back(bytes, bytes + payload.length);
  }
  for (const Segment& tensor : frame.tensors) {
    in.tensors.push_back(allocateBlob(tensor.length));
    if (tensor.length > 0) { // memcpy takes no null pointer, not even for nothing
      std::memcpy(in.tensors.back().data.get(), tensor.data, tensor.length);
    }
  }
  return in;
}

ReceivedFrame readHeader(IncomingFrame frame) {
  ByteReader in(frame.head);
  const FrameHeader header = FrameHeader::read(in);
  return {header, std::move(frame)};
}

void setTimeLeft(OutgoingFrame& frame, std::chrono::milliseconds left) {
  const auto units = (left + kTimeUnit - std::chrono::milliseconds(1)) / kTimeUnit;
  if (units <= std::numeric_limits<uint16_t>::max()) {
    const auto number = static_cast<uint16_t>(units);
    std::memcpy(frame.head.data() + kTimeOffset, &number, sizeof(number));
  }
}

void setServed(OutgoingFrame& frame, std::chrono::nanoseconds served) {
  const uint16_t number = packed(served);
  std::memcpy(frame.head.data() + kTimeOffset, &number, sizeof(number));
}

void setCallId(OutgoingFrame& frame, uint64_t id) {
  std::memcpy(frame.head.data() + kCallIdOffset, &id, sizeof(id));
}

uint64_t callIdOf(const OutgoingFrame& frame) {
  uint64_t id = 0;
  std::memcpy(&id, frame.head.data() + kCallIdOffset, sizeof(id));
  return id;
}

bool isRequest(const OutgoingFrame& frame) {
  return frame.head.front() == static_cast<char>(FrameKind::request);
}

void setSequence(OutgoingFrame& frame, uint64_t sequence, uint64_t acknowledged) {
  std::memcpy(frame.head.data() + kSequenceOffset, &sequence, sizeof(sequence));
  std::memcpy(frame.head.data() + kAcknowledgedOffset, &acknowledged, sizeof(acknowledged));
}

OutgoingFrame acknowledgeFrame(uint64_t acknowledged) {
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{.kind = FrameKind::acknowledge, .acknowledged = acknowledged}.write(out);
  return frame;
}

void FrameHeader::write(ByteWriter& out) const {
  out.number(kind);
  out.number(flags);
  out.number(
      kind == FrameKind::response ? packed(served) : static_cast<uint16_t>(timeLeft / kTimeUnit));
  out.number(messageType);
  out.number(callId);
  out.number(bodyLength);
  out.number(uint64_t{0}); // a checksum, entered once the frame is whole
  if (isNumbered(kind)) {
    out.number(sequence);
    out.number(acknowledged);
  }
}

FrameHeader FrameHeader::read(ByteReader& in) {
  FrameHeader header;
  const auto kind = in.number<uint8_t>();
  if (kind < static_cast<uint8_t>(FrameKind::hello) ||
      kind > static_cast<uint8_t>(FrameKind::acknowledge)) {
    throw FormatError("a frame of unknown kind " + std::to_string(kind));
  }
  header.kind = static_cast<FrameKind>(kind);
  header.flags = in.number<uint8_t>();
  const auto time = in.number<uint16_t>();
  if (header.kind == FrameKind::response) {
    header.served = unpacked(time);
  } else {
    header.timeLeft = time * kTimeUnit;
  }
  header.messageType = in.number<uint32_t>();
  header.callId = in.number<uint64_t>();
  header.bodyLength = in.number<uint64_t>();
  in.number<uint64_t>(); // the checksum: not of a header alone
  if (isNumbered(header.kind)) {
    header.sequence = in.number<uint64_t>();
    header.acknowledged = in.number<uint64_t>();
  }
  return header;
}

} // namespace torchwire
