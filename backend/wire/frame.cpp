#include "backend/wire/frame.h"

#include <utility>

#include "backend/base/aligned_memory.h"

namespace torchwire {
namespace {

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

void setCallId(OutgoingFrame& frame, uint64_t id) {
  constexpr size_t kOffset = 8; // see FrameHeader::write
  std::memcpy(frame.head.data() + kOffset, &id, sizeof(id));
}

void FrameHeader::write(ByteWriter& out) const {
  out.number(kind);
  out.number(flags);
  out.number(uint16_t{0});
  out.number(messageType);
  out.number(callId);
  out.number(bodyLength);
  out.number(uint64_t{0}); // a checksum, entered once the frame is whole
}

FrameHeader FrameHeader::read(ByteReader& in) {
  FrameHeader header;
  const auto kind = in.number<uint8_t>();
  if (kind < static_cast<uint8_t>(FrameKind::hello) ||
      kind > static_cast<uint8_t>(FrameKind::goodbye)) {
    throw FormatError("a frame of unknown kind " + std::to_string(kind));
  }
  header.kind = static_cast<FrameKind>(kind);
  header.flags = in.number<uint8_t>();
  in.number<uint16_t>();
  header.messageType = in.number<uint32_t>();
  header.callId = in.number<uint64_t>();
  header.bodyLength = in.number<uint64_t>();
  in.number<uint64_t>(); // the checksum: not of a header alone
  return header;
}

} // namespace torchwire
