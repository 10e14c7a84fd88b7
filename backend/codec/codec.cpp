#include "backend/codec/codec.h"

#include <utility>
#include <vector>

#include "backend/codec/inline_limit.h"
#include "backend/codec/tensor_codec.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

constexpr uint8_t kBodyInHead = 1;

// What a frame's segments point into.
struct Owner {
  c10::intrusive_ptr<rpc::Message> message;
  std::shared_ptr<void> tensors;
};

} // namespace

OutgoingFrame encodeMessage(
    FrameKind kind, c10::intrusive_ptr<rpc::Message> message, const Disposer& disposer,
    const TensorTargets& targets) {
  const std::vector<char>& body = std::as_const(*message).payload();
  const bool small = body.size() < inlineLimit();

  OutgoingFrame frame;
  // Room for the body and a few small tensors: most frames are then made with one allocation.
  frame.head.reserve(FrameHeader::kSize + (small ? body.size() : 0) + 512);
  ByteWriter out(frame.head);
  FrameHeader header;
  header.kind = kind;
  header.flags = small ? kBodyInHead : 0;
  header.messageType = static_cast<uint32_t>(message->type());
  header.bodyLength = body.size();
  header.write(out);
  if (small) {
    out.raw(body.data(), body.size());
  } else {
    frame.payloads.push_back({body.data(), body.size()});
  }
  auto tensors = encodeTensors(std::as_const(*message).tensors(), frame, targets);
  if (!frame.payloads.empty() || !frame.tensors.empty()) {
    frame.owner = disposer.keep(Owner{std::move(message), std::move(tensors)});
  }
  return frame;
}

// A table of none is a count, which is zero.
bool carriesTensors(const ReceivedFrame& received) {
  const bool bodyInHead = (received.header.flags & kBodyInHead) != 0;
  return received.frame.head.size() >
      FrameHeader::kSize + (bodyInHead ? received.header.bodyLength : 0) + sizeof(uint32_t);
}

DecodedMessage decodeMessage(ReceivedFrame received) {
  const FrameHeader& header = received.header;
  IncomingFrame& frame = received.frame;
  ByteReader in(frame.head);
  in.raw(FrameHeader::kSize);
  std::vector<char> body;
  if ((header.flags & kBodyInHead) != 0) {
    const char* start = in.raw(header.bodyLength);
    body.assign(start, start + header.bodyLength);
  } else {
    if (frame.payloads.size() != 1 || frame.payloads[0].size() != header.bodyLength) {
      throw FormatError("a message whose payload did not come");
    }
    body = std::move(frame.payloads[0]);
  }
  auto [tensors, targets] = decodeTensors(in, frame.tensors);
  auto message = c10::make_intrusive<rpc::Message>(
      std::move(body), std::move(tensors), static_cast<rpc::MessageType>(header.messageType),
      static_cast<int64_t>(header.callId));
  return {std::move(message), std::move(targets)};
}

} // namespace torchwire
