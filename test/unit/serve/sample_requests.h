// Requests for tests, and how to read their responses.
#pragma once

#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>

#include <string>
#include <utility>
#include <vector>

#include "backend/serve/own_messages.h"

namespace torchwire {

/// Types of our own that no module registers.
constexpr auto kOwnRequest =
    static_cast<torch::distributed::rpc::MessageType>(own_requests::request(0xf0));
constexpr auto kOtherOwnRequest =
    static_cast<torch::distributed::rpc::MessageType>(own_requests::request(0xf1));
constexpr auto kOwnResponse =
    static_cast<torch::distributed::rpc::MessageType>(own_requests::response(0xf2));

inline c10::intrusive_ptr<torch::distributed::rpc::Message> messageOf(
    const std::string& payload, torch::distributed::rpc::MessageType type,
    std::vector<at::Tensor> tensors = {}) {
  return c10::make_intrusive<torch::distributed::rpc::Message>(
      std::vector<char>(payload.begin(), payload.end()), std::move(tensors), type);
}

/// A call of a builtin operator, such as "aten::add" with overload "Tensor".
inline c10::intrusive_ptr<torch::distributed::rpc::Message> operatorCall(
    const char* name, const char* overload, std::vector<at::IValue> arguments) {
  auto found = torch::jit::findOperatorFor({name, overload});
  return torch::distributed::rpc::ScriptCall(std::move(found), std::move(arguments)).toMessage();
}

/// aten::add of two numbers as tensors.
inline c10::intrusive_ptr<torch::distributed::rpc::Message> addition(double a, double b) {
  return operatorCall(
      "aten::add", "Tensor", {at::scalar_tensor(a), at::scalar_tensor(b), at::Scalar(1)});
}

/// aten::is_owner of an RRef.
inline c10::intrusive_ptr<torch::distributed::rpc::Message> callWithRRef(at::IValue rref) {
  return operatorCall("aten::is_owner", "", {std::move(rref)});
}

inline std::string payloadOf(const torch::distributed::rpc::Message& message) {
  return {message.payload().begin(), message.payload().end()};
}

inline bool isError(const torch::distributed::rpc::Message& message) {
  return message.type() == torch::distributed::rpc::MessageType::EXCEPTION;
}

/// What a call of an operator has returned.
inline at::IValue valueOf(const torch::distributed::rpc::Message& response) {
  return torch::distributed::rpc::ScriptResp::fromMessage(response)->value();
}

} // namespace torchwire
