#include "backend/codec/codec.h"

#include <utility>
#include <vector>

#include "backend/codec/tensor_codec.h"
#include "backend/wire/message_body.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

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
  OutgoingFrame frame;
  writeBody(frame, kind, static_cast<uint32_t>(message->type()), body);
  auto tensors = encodeTensors(std::as_const(*message).tensors(), frame, targets);
  if (!frame.payloads.empty() || !frame.tensors.empty()) {
    frame.owner = disposer.keep(Owner{std::move(message), std::move(tensors)});
  }
  return frame;
}

// A table of none is a count, which is zero.
bool carriesTensors(const ReceivedFrame& received) {
  return received.frame.head.size() > endOfBody(received.header) + sizeof(uint32_t);
}

DecodedMessage decodeMessage(ReceivedFrame received) {
  const FrameHeader& header = received.header;
  IncomingFrame& frame = received.frame;
  ByteReader in(frame.head);
  std::vector<char> body = takeBody(header, frame, in);
  auto [tensors, targets] = decodeTensors(in, frame.tensors);
  auto message = c10::make_intrusive<rpc::Message>(
      std::move(body), std::move(tensors), static_cast<rpc::MessageType>(header.messageType),
      static_cast<int64_t>(header.callId));
  return {std::move(message), std::move(targets)};
}

} // namespace torchwire
