#include "backend/wire/message_body.h"

#include <memory>
#include <utility>

#include "backend/wire/inline_limit.h"

namespace torchwire {
namespace {

// In FrameHeader::flags.
constexpr uint8_t kBodyInHead = 1;

bool isInHead(const FrameHeader& header) {
  return (header.flags & kBodyInHead) != 0;
}

} // namespace

bool writeBody(
    OutgoingFrame& frame, FrameKind kind, uint32_t messageType, const std::vector<char>& body) {
  const bool small = body.size() < inlineLimit();
  // Room for the body and a few small tensors: most frames are then made with one allocation.
  frame.head.reserve(FrameHeader::kSize + (small ? body.size() : 0) + 512);
  FrameHeader header;
  header.kind = kind;
  header.flags = small ? kBodyInHead : 0;
  header.messageType = messageType;
  header.bodyLength = body.size();
  ByteWriter out(frame.head);
  header.write(out);
  if (small) {
    out.raw(body.data(), body.size());
  } else {
    frame.payloads.push_back({body.data(), body.size()});
  }
  return small;
}

std::vector<char> takeBody(const FrameHeader& header, IncomingFrame& frame, ByteReader& in) {
  in.raw(FrameHeader::kSize);
  if (isInHead(header)) {
    const char* const start = in.raw(header.bodyLength);
    return {start, start + header.bodyLength};
  }
  if (frame.payloads.size() != 1 || frame.payloads[0].size() != header.bodyLength) {
    throw FormatError("a message whose payload did not come");
  }
  return std::move(frame.payloads[0]);
}

size_t endOfBody(const FrameHeader& header) {
  return FrameHeader::kSize + (isInHead(header) ? header.bodyLength : 0);
}

OutgoingFrame bodyFrame(FrameKind kind, uint32_t messageType, std::vector<char> body) {
  OutgoingFrame frame;
  const auto kept = std::make_shared<std::vector<char>>(std::move(body));
  if (!writeBody(frame, kind, messageType, *kept)) {
    frame.owner = kept;
  }
  ByteWriter(frame.head).number(uint32_t{0}); // tensors
  return frame;
}

std::vector<char> bodyIn(ReceivedFrame received) {
  ByteReader in(received.frame.head);
  std::vector<char> body = takeBody(received.header, received.frame, in);
  if (in.number<uint32_t>() != 0 || !received.frame.tensors.empty()) {
    throw FormatError("tensors in a message that has none");
  }
  return body;
}

} // namespace torchwire
