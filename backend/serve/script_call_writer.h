// Calls of builtin operators and TorchScript functions from Python, in the messages that libtorch would write.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

namespace torchwire {

/// The request of a call, and the type of the future of its result, as PyTorch has it.
struct ScriptRequest {
  c10::intrusive_ptr<torch::distributed::rpc::Message> message;
  at::TypePtr result;
};

/// A call of the operator, `name` as "aten::add": of its first overload that takes the arguments, as PyTorch has it. With the
/// GIL. Throws c10::Error where none does.
ScriptRequest writeOperatorCall(
    const std::string& name, const pybind11::args& args, const pybind11::kwargs& kwargs);

/// A call of a TorchScript function, `name` as "__torch__.module.function". With the GIL. Throws c10::Error where the
/// function is not compiled in this process, or does not take the arguments.
ScriptRequest writeFunctionCall(
    const std::string& name, const pybind11::args& args, const pybind11::kwargs& kwargs,
    bool isAsync);

/// The value in the response to either. Attaches a recv function to the tensors of a response that is part of an autograd
/// context. Throws c10::Error. Without the GIL.
at::IValue readScriptResult(const torch::distributed::rpc::Message& response);
/// The same for the future of an operator's call: as one object of Python's, however often it is asked for. Takes the GIL for
/// anything but a tensor.
at::IValue readOperatorResult(const torch::distributed::rpc::Message& response);

} // namespace torchwire
