#include "backend/serve/request_label.h"

#include <torch/csrc/distributed/rpc/script_remote_call.h>

#include <catch2/catch.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/serve/own_messages.h"
#include "test/unit/serve/sample_requests.h"

using namespace torchwire;
using torch::distributed::rpc::MessageType;

namespace {

std::string labelOf(MessageType type, std::string_view body) {
  const LabelledRequest request(static_cast<uint32_t>(type), body);
  return std::string(request.label().kind) + " " + std::string(request.label().function);
}

std::string directCall(const std::string& module, const std::string& name) {
  std::vector<char> body{own_messages::direct_body::kCall};
  ByteWriter out(body);
  out.string(module);
  out.string(name);
  out.string("the arguments");
  return {body.begin(), body.end()};
}

std::string shortText(const std::string& text) {
  return "\x8c" + std::string(1, static_cast<char>(text.size())) + text + "\x94";
}

// As libtorch's pickles have it.
std::string textOfLibtorch(const std::string& text, std::optional<uint32_t> length = std::nullopt) {
  std::vector<char> bytes{'X'};
  ByteWriter out(bytes);
  out.number(length.value_or(static_cast<uint32_t>(text.size())));
  return std::string(bytes.begin(), bytes.end()) + text;
}

// As Python's pickle, protocol 4, begins the PythonUDF of a call.
std::string pickledCall() {
  return std::string("\x80\x04\x95", 3) + std::string(8, '\0') +
      shortText("torch.distributed.rpc.internal") + shortText("PythonUDF") + "\x93\x94" +
      shortText("my.module") + shortText("function") + "\x93\x94)}";
}

// The same where its function is to run in a trace context.
std::string pickledCallInContext() {
  std::string pickle = pickledCall();
  return pickle.insert(
      pickle.find("my.module") - 2,
      shortText("torchwire.trace_context") + shortText("InContext") + "\x93\x94");
}

} // namespace

TEST_CASE("a request's bytes say what is called", "[request_label]") {
  CHECK(
      labelOf(MessageType::PYTHON_CALL, directCall("my.module", "A.f")) == "python my.module.A.f");
  CHECK(
      labelOf(MessageType::PYTHON_CALL, std::string(1, '\0') + pickledCall()) ==
      "python my.module.function");
  CHECK(
      labelOf(MessageType::PYTHON_CALL, std::string(1, '\1') + pickledCallInContext()) ==
      "python my.module.function");
  CHECK(
      labelOf(
          MessageType::PYTHON_REMOTE_CALL, "what libtorch writes" + pickledCall() + "and after") ==
      "remote my.module.function");
  CHECK(
      labelOf(
          MessageType::SCRIPT_CALL,
          "..." + textOfLibtorch("aten::add.Tensor(Tensor self, Tensor other)") + "q\1" +
              textOfLibtorch("torch.ops.aten.add") + "X, and so on") == "builtin aten::add");
  CHECK(
      labelOf(
          MessageType::SCRIPT_CALL,
          "aten::add, in an argument, " + textOfLibtorch("__torch__.module.f") + "q\1") ==
      "script __torch__.module.f");
  CHECK(
      labelOf(
          MessageType::FORWARD_AUTOGRAD_REQ,
          std::string(1, own_messages::direct_body::kForward) + std::string(16, '\0') +
              directCall("m", "f")) == "forward m.f");
  CHECK(labelOf(MessageType::RREF_USER_DELETE, "") == "rref ");
  CHECK(labelOf(own_messages::kGradients, "") == "backward ");
  CHECK(labelOf(own_messages::kHoldersRequest, "") == "control ");
}

TEST_CASE("calls that libtorch has written say what is called", "[request_label]") {
  const auto labelIn = [](const torch::distributed::rpc::Message& request) {
    return std::string(LabelledRequest(request).label().function);
  };
  const c10::QualifiedName function("__torch__.module.fq");
  const torch::distributed::rpc::GloballyUniqueId someRRef(1, 2);
  CHECK(
      labelIn(*torch::distributed::rpc::ScriptCall(function, {}).toMessage()) ==
      "__torch__.module.fq");
  CHECK(
      labelIn(
          *torch::distributed::rpc::ScriptCall(function, {at::IValue("aten::add")}).toMessage()) ==
      "__torch__.module.fq");
  CHECK(
      labelIn(*torch::distributed::rpc::ScriptRemoteCall(
                   function, {}, someRRef, someRRef, /* isAsyncExecution */ false)
                   .toMessage()) == "__torch__.module.fq");
  CHECK(labelIn(*addition(1, 2)) == "aten::add");
}

TEST_CASE("what cannot be read has no function", "[request_label]") {
  CHECK(labelOf(MessageType::PYTHON_CALL, "") == "python ");
  CHECK(labelOf(MessageType::PYTHON_CALL, std::string(1, '\0') + "\x80\x04.") == "python ");
  CHECK(labelOf(MessageType::PYTHON_REMOTE_CALL, "nothing of Python's") == "remote ");
  CHECK(labelOf(MessageType::PYTHON_REMOTE_CALL, "torch.distributed.rpc.internal") == "remote ");
  CHECK(labelOf(MessageType::SCRIPT_CALL, "no name") == "script ");
  CHECK(labelOf(MessageType::SCRIPT_CALL, "__torch__.f") == "script ");
  CHECK(labelOf(MessageType::SCRIPT_CALL, "X\1__torch__.f") == "script ");
  CHECK(labelOf(MessageType::SCRIPT_CALL, textOfLibtorch("in __torch__.f")) == "script ");
  const std::string name = "__torch__.f";
  for (const uint32_t length : {12u, 0xffffffffu}) { // one more than there is
    CHECK(labelOf(MessageType::SCRIPT_CALL, textOfLibtorch(name, length)) == "script ");
  }
  CHECK(labelOf(MessageType::SCRIPT_CALL, textOfLibtorch(name, 0)) == "script ");
  CHECK(labelOf(static_cast<MessageType>(12345), "x") == "control ");
}

TEST_CASE("any bytes have a label", "[request_label]") {
  std::mt19937 random(5);
  const std::string whole = std::string(1, '\0') + pickledCall() + directCall("m", "f") +
      "aten::" + textOfLibtorch("__torch__.m.f") + "q\1";
  for (int i = 0; i < 20000; ++i) {
    std::string body = whole.substr(random() % whole.size(), random() % (whole.size() + 1));
    for (int flips = static_cast<int>(random() % 4); flips > 0 && !body.empty(); --flips) {
      body[random() % body.size()] = static_cast<char>(random());
    }
    for (const auto type :
         {MessageType::PYTHON_CALL, MessageType::PYTHON_REMOTE_CALL, MessageType::SCRIPT_CALL,
          MessageType::FORWARD_AUTOGRAD_REQ}) {
      CHECK(!labelOf(type, body).empty());
    }
  }
}
