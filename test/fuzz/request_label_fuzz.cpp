// What a request asks for, read from bodies that other workers send.

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/serve/own_messages.h"
#include "backend/serve/request_label.h"
#include "test/fuzz/fuzz.h"

namespace torchwire {
namespace {

using torch::distributed::rpc::MessageType;

constexpr MessageType kTypes[] = {
    MessageType::PYTHON_CALL,
    MessageType::PYTHON_REMOTE_CALL,
    MessageType::SCRIPT_CALL,
    MessageType::SCRIPT_REMOTE_CALL,
    MessageType::PYTHON_RREF_FETCH_CALL,
    MessageType::FORWARD_AUTOGRAD_REQ,
    MessageType::RUN_WITH_PROFILING_REQ,
    own_messages::kGradients,
    own_messages::kHoldersRequest,
};

void run(Script script) {
  const auto type = static_cast<uint32_t>(script.PickValueInArray(kTypes));
  const bool claimsMore = script.ConsumeBool(); // than has come
  const std::string body = script.ConsumeRemainingBytesAsString();
  const LabelledRequest request(type, body);
  require(!request.label().kind.empty(), "a request is of some kind");

  ReceivedFrame frame;
  frame.header.messageType = type;
  frame.header.bodyLength = body.size() * (claimsMore ? 2 : 1);
  frame.frame.head.resize(FrameHeader::kSize);
  frame.frame.head.insert(frame.frame.head.end(), body.begin(), body.end());
  const LabelledRequest received(frame);
  require(received.label() == request.label(), "a frame's label is that of the body in it");
}

} // namespace
} // namespace torchwire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  torchwire::run(torchwire::Script(data, size));
  return 0;
}
