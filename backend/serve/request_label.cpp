#include "backend/serve/request_label.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "backend/base/bytes.h"
#include "backend/codec/codec.h"
#include "backend/serve/own_messages.h"

namespace torchwire {
namespace {

using torch::distributed::rpc::MessageType;
using namespace own_messages::direct_body;

/// Views of a request's bytes.
struct Function {
  std::string_view module; // empty: the name is the whole
  std::string_view name;
};

// A direct call's body has its function's module and name behind the first byte, each after its length.
Function functionOfDirectCall(std::string_view body) {
  ByteReader in(body.data(), body.size());
  in.raw(1);
  const auto text = [&in] {
    const auto length = in.number<uint32_t>();
    return std::string_view(in.raw(length), length);
  };
  const std::string_view module = text();
  return {module, text()};
}

/// Reads the beginning of a pickle that Python has made of a PythonUDF: of its class, and of the function, each a module
/// and a name. Opcodes that stand nowhere there end it.
class PickledCall {
 public:
  explicit PickledCall(std::string_view pickle) : in_(pickle.data(), pickle.size()) {}

  Function function() {
    global();
    const Function called = global();
    const bool inContext = called.module == "torchwire.trace_context" && called.name == "InContext";
    return inContext ? global() : called;
  }

 private:
  enum Opcode : uint8_t {
    kProto = 0x80,
    kFrame = 0x95,
    kMemoize = 0x94,
    kStackGlobal = 0x93,
    kShortText = 0x8c,
    kMark = '(',
  };

  // Texts until the opcode that makes the last two a global.
  Function global() {
    Function found;
    while (true) {
      switch (in_.number<uint8_t>()) {
        case kProto:
          in_.raw(1);
          break;
        case kFrame:
          in_.raw(sizeof(uint64_t));
          break;
        case kMemoize:
        case kMark:
          break;
        case kShortText: {
          const auto length = in_.number<uint8_t>();
          found = {found.name, {in_.raw(length), length}};
          break;
        }
        case kStackGlobal:
          return found;
        default:
          throw FormatError("a pickle that begins with something else");
      }
    }
  }

  ByteReader in_;
};

// Behind the tensors of a libtorch's pickle stands Python's, which begins with the module of PythonUDF.
Function functionOfPythonRemote(std::string_view body) {
  const size_t module = body.find("torch.distributed.rpc.internal");
  return PickledCall(body.substr(module - 2)).function(); // its opcode and length; or it throws
}

// What is called stands near the beginning or the end of a body: of a long one, the rest is not looked through.
constexpr size_t kLookedAt = 4096;

// The opcode of a text in libtorch's pickles; its length follows.
constexpr char kLibtorchsText = 'X';

/// Empty if none stands there.
std::string_view textAt(std::string_view pickle, const char* opcode) {
  ByteReader in(opcode + 1, static_cast<size_t>(pickle.end() - opcode) - 1);
  if (in.remaining() < sizeof(uint32_t)) {
    return {};
  }
  const auto length = in.number<uint32_t>();
  return length > in.remaining() ? std::string_view() : std::string_view(in.raw(length), length);
}

// The last texts in the pickle of a call in TorchScript say what is called: a function's qualified name, or an operator's
// schema before its name in Python. From the end, since every call of an operator pays for it.
Function functionOfScriptCall(std::string_view body) {
  body.remove_prefix(body.size() - std::min(body.size(), kLookedAt));
  for (size_t length = body.size(); length != 0;) {
    const auto* const found =
        static_cast<const char*>(memrchr(body.data(), kLibtorchsText, length));
    if (found == nullptr) {
      break;
    }
    const std::string_view text = textAt(body, found);
    if (text.starts_with("__torch__.")) {
      return {{}, text};
    }
    if (text.starts_with("aten::")) { // behind which stand the overload and the parameters
      return {{}, text.substr(0, text.find_first_of(".("))};
    }
    length = static_cast<size_t>(found - body.data());
  }
  return {};
}

Function functionOfCall(uint32_t messageType, std::string_view body) {
  switch (static_cast<int>(messageType)) {
    case MessageType::PYTHON_CALL:
      return body.at(0) == kCall || body.at(0) == kAsyncCall
          ? functionOfDirectCall(body)
          : PickledCall(body.substr(1)).function();
    case MessageType::PYTHON_REMOTE_CALL:
      return functionOfPythonRemote(body);
    case MessageType::SCRIPT_CALL:
    case MessageType::SCRIPT_REMOTE_CALL:
      return functionOfScriptCall(body);
    default:
      return {};
  }
}

// Where the autograd part of a request stands before the call's: kForward, and two numbers.
constexpr size_t kForwardEnvelope = 1 + 2 * sizeof(int64_t);

Function functionOf(uint32_t messageType, std::string_view body) {
  if (messageType == static_cast<uint32_t>(MessageType::FORWARD_AUTOGRAD_REQ)) {
    return body.at(0) == kForward ? functionOfDirectCall(body.substr(kForwardEnvelope))
                                  : Function();
  }
  return functionOfCall(messageType, body);
}

std::string_view kindOf(uint32_t messageType, std::string_view function) {
  switch (static_cast<int>(messageType)) {
    case MessageType::PYTHON_CALL:
      return "python";
    case MessageType::SCRIPT_CALL:
      return function.starts_with("aten::") ? "builtin" : "script";
    case MessageType::PYTHON_REMOTE_CALL:
    case MessageType::SCRIPT_REMOTE_CALL:
      return "remote";
    case MessageType::PYTHON_RREF_FETCH_CALL:
    case MessageType::SCRIPT_RREF_FETCH_CALL:
      return "fetch";
    case MessageType::RREF_USER_DELETE:
    case MessageType::RREF_FORK_REQUEST:
    case MessageType::RREF_CHILD_ACCEPT:
      return "rref";
    case MessageType::FORWARD_AUTOGRAD_REQ:
      return "forward";
    case MessageType::RUN_WITH_PROFILING_REQ:
      return "profiled";
    default:
      break;
  }
  using namespace own_messages;
  const auto type = static_cast<MessageType>(messageType);
  const bool isBackward = type == kGradients || type == kDiscover || type == kResume ||
      type == kEndPass || type == MessageType::BACKWARD_AUTOGRAD_REQ;
  return isBackward ? "backward" : "control";
}

std::string_view bodyOf(const torch::distributed::rpc::Message& request) {
  return {request.payload().data(), request.payload().size()};
}

std::string_view bodyOf(const ReceivedFrame& request) {
  const IncomingFrame& frame = request.frame;
  if (!frame.payloads.empty()) {
    return {frame.payloads.front().data(), frame.payloads.front().size()};
  }
  const std::string_view head(frame.head.data(), frame.head.size());
  return head.substr(std::min(head.size(), FrameHeader::kSize), request.header.bodyLength);
}

} // namespace

LabelledRequest::LabelledRequest(uint32_t messageType, std::string_view body) {
  try {
    const auto [module, name] = functionOf(messageType, body);
    function_.append(module.begin(), module.end());
    if (!module.empty()) {
      function_.push_back('.');
    }
    function_.append(name.begin(), name.end());
  } catch (const std::exception&) { // what is called stands elsewhere, or nowhere
  }
  kind_ = kindOf(messageType, {function_.data(), function_.size()});
}

LabelledRequest::LabelledRequest(const torch::distributed::rpc::Message& request)
    : LabelledRequest(static_cast<uint32_t>(request.type()), bodyOf(request)) {}

LabelledRequest::LabelledRequest(const ReceivedFrame& request)
    : LabelledRequest(request.header.messageType, bodyOf(request)) {}

} // namespace torchwire
