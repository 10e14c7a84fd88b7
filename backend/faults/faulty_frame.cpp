#include "backend/faults/faulty_frame.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/link/checksum_interceptor.h"

namespace torchwire::faults {
namespace {

// As codec.cpp writes them. That needs torch, which nothing here does.
constexpr uint8_t kBodyInHead = 1;
constexpr uint32_t kException = 0x37 | 0x200; // MessageType::EXCEPTION

constexpr char kEveryBit = static_cast<char>(0xff);

uint64_t hashOf(std::string_view bytes) { // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

// `payload`: the first, where there is one.
uint64_t contentOf(const std::vector<char>& head, std::string_view payload) {
  const auto header = headerIn(head);
  if (!header || (header->flags & kBodyInHead) == 0) {
    return hashOf(payload);
  }
  const std::string_view afterHeader =
      std::string_view(head.data(), head.size()).substr(FrameHeader::kSize);
  return hashOf(afterHeader.substr(0, header->bodyLength));
}

// Puts a copy of the segment in its place.
char* copySegment(OutgoingFrame& frame, Segment& segment) {
  struct Owner {
    std::shared_ptr<void> former;
    Blob copy;
  };
  Blob copy = allocateBlob(segment.length);
  char* const bytes = static_cast<char*>(copy.data.get());
  std::memcpy(bytes, segment.data, segment.length);
  segment.data = bytes;
  frame.owner = std::make_shared<Owner>(Owner{std::move(frame.owner), std::move(copy)});
  return bytes;
}

void corruptSegment(OutgoingFrame& frame, Segment& segment, size_t place) {
  copySegment(frame, segment)[place] ^= kEveryBit;
}

// The segment in which that byte is, whose place in it remains; none: it is behind them all.
Segment* find(std::vector<Segment>& segments, uint64_t& place) {
  for (Segment& segment : segments) {
    if (place < segment.length) {
      return &segment;
    }
    place -= segment.length;
  }
  return nullptr;
}

} // namespace

std::optional<FrameHeader> headerIn(const std::vector<char>& head) {
  try {
    ByteReader in(head);
    return FrameHeader::read(in);
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

uint64_t contentOf(const OutgoingFrame& frame) {
  std::string_view payload;
  if (!frame.payloads.empty()) {
    payload = {static_cast<const char*>(frame.payloads[0].data), frame.payloads[0].length};
  }
  return contentOf(frame.head, payload);
}

uint64_t contentOf(const IncomingFrame& frame) {
  std::string_view payload;
  if (!frame.payloads.empty()) {
    payload = {frame.payloads[0].data(), frame.payloads[0].size()};
  }
  return contentOf(frame.head, payload);
}

void corrupt(OutgoingFrame& frame, uint64_t byte) {
  const size_t length = frame.bytes();
  uint64_t place = length == 0 ? 0 : byte % length;
  if (place < frame.head.size()) {
    frame.head[place] ^= kEveryBit;
    return;
  }
  place -= frame.head.size();
  if (Segment* payload = find(frame.payloads, place)) {
    corruptSegment(frame, *payload, place);
  } else if (Segment* tensor = find(frame.tensors, place)) {
    corruptSegment(frame, *tensor, place);
  }
}

void corrupt(IncomingFrame& frame, uint64_t byte) {
  const size_t length = frame.bytes();
  uint64_t place = length == 0 ? 0 : byte % length;
  if (place < frame.head.size()) {
    frame.head[place] ^= kEveryBit;
    return;
  }
  place -= frame.head.size();
  for (std::vector<char>& payload : frame.payloads) {
    if (place < payload.size()) {
      payload[place] ^= kEveryBit;
      return;
    }
    place -= payload.size();
  }
  for (const Blob& tensor : frame.tensors) { // received, and nobody else's yet
    if (place < tensor.length) {
      static_cast<char*>(tensor.data.get())[place] ^= kEveryBit;
      return;
    }
    place -= tensor.length;
  }
}

size_t tensorBytes(const OutgoingFrame& frame) {
  size_t total = 0;
  for (const Segment& tensor : frame.tensors) {
    total += tensor.length;
  }
  return total;
}

const void* lastTensorOfItsOwn(OutgoingFrame& frame) {
  const auto last = std::find_if(
      frame.tensors.rbegin(), frame.tensors.rend(),
      [](const Segment& tensor) { return tensor.length > 0; });
  return last == frame.tensors.rend() ? nullptr : copySegment(frame, *last);
}

void corruptTensors(OutgoingFrame& frame, uint64_t byte) {
  uint64_t place = byte % tensorBytes(frame);
  if (Segment* tensor = find(frame.tensors, place)) {
    corruptSegment(frame, *tensor, place);
  }
}

IncomingFrame copyOf(const IncomingFrame& frame) {
  IncomingFrame copy{frame.head, frame.payloads, {}};
  for (const Blob& tensor : frame.tensors) {
    copy.tensors.push_back(allocateBlob(tensor.length));
    if (tensor.length > 0) { // memcpy takes no null pointer, not even for nothing
      std::memcpy(copy.tensors.back().data.get(), tensor.data.get(), tensor.length);
    }
  }
  return copy;
}

OutgoingFrame exceptionFrame(uint64_t callId, const std::string& text) {
  OutgoingFrame frame;
  ByteWriter out(frame.head);
  FrameHeader{
      .kind = FrameKind::response,
      .flags = kBodyInHead,
      .messageType = kException,
      .callId = callId,
      .bodyLength = text.size()}
      .write(out);
  out.raw(text.data(), text.size());
  out.number(uint32_t{0}); // tensors
  enterChecksum(frame); // the checksum interceptor is above this one, and does not see it
  return frame;
}

} // namespace torchwire::faults
