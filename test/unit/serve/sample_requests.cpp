#include "test/unit/serve/sample_requests.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>

#include <utility>

namespace torchwire {

namespace rpc = torch::distributed::rpc;

c10::intrusive_ptr<rpc::Message> messageOf(
    const std::string& payload, rpc::MessageType type, std::vector<at::Tensor> tensors) {
  return c10::make_intrusive<rpc::Message>(
      std::vector<char>(payload.begin(), payload.end()), std::move(tensors), type);
}

c10::intrusive_ptr<rpc::Message> operatorCall(
    const char* name, const char* overload, std::vector<at::IValue> arguments) {
  auto found = torch::jit::findOperatorFor({name, overload});
  return rpc::ScriptCall(std::move(found), std::move(arguments)).toMessage();
}

c10::intrusive_ptr<rpc::Message> addition(double a, double b) {
  return operatorCall(
      "aten::add", "Tensor", {at::scalar_tensor(a), at::scalar_tensor(b), at::Scalar(1)});
}

c10::intrusive_ptr<rpc::Message> callWithRRef(at::IValue rref) {
  return operatorCall("aten::is_owner", "", {std::move(rref)});
}

std::string payloadOf(const rpc::Message& message) {
  return {message.payload().begin(), message.payload().end()};
}

bool isError(const rpc::Message& message) {
  return message.type() == rpc::MessageType::EXCEPTION;
}

at::IValue valueOf(const rpc::Message& response) {
  return rpc::ScriptResp::fromMessage(response)->value();
}

} // namespace torchwire
