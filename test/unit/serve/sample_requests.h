// Requests for tests, and how to read their responses.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/rpc/message.h>

#include <string>
#include <vector>

#include "backend/serve/own_messages.h"

namespace torchwire {

/// Types of our own that no module registers.
constexpr auto kOwnRequest = own_messages::detail::request(0xf0);
constexpr auto kOtherOwnRequest = own_messages::detail::request(0xf1);
constexpr auto kOwnResponse = own_messages::detail::response(0xf2);

c10::intrusive_ptr<torch::distributed::rpc::Message> messageOf(
    const std::string& payload, torch::distributed::rpc::MessageType type,
    std::vector<at::Tensor> tensors = {});

/// A call of a builtin operator, such as "aten::add" with overload "Tensor".
c10::intrusive_ptr<torch::distributed::rpc::Message> operatorCall(
    const char* name, const char* overload, std::vector<at::IValue> arguments);
/// aten::add of two numbers as tensors.
c10::intrusive_ptr<torch::distributed::rpc::Message> addition(double a, double b);
/// aten::is_owner of an RRef.
c10::intrusive_ptr<torch::distributed::rpc::Message> callWithRRef(at::IValue rref);

std::string payloadOf(const torch::distributed::rpc::Message& message);
bool isError(const torch::distributed::rpc::Message& message);
/// What a call of an operator has returned.
at::IValue valueOf(const torch::distributed::rpc::Message& response);

} // namespace torchwire
