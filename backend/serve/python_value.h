// Python functions that requests run, and what becomes of their values.
#pragma once

#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>

namespace torchwire {

/// The value, pickled. Takes the GIL. Throws c10::Error with Python's text when it cannot be pickled.
torch::distributed::rpc::SerializedPyObj serializePython(at::IValue value);

/// The future of what a function returns or raises. As RequestCallbackImpl::runPythonFunction, which throws an exception
/// without a text where an async function returns None. Takes the GIL. Throws what keeps the function from running.
c10::intrusive_ptr<torch::distributed::rpc::JitFuture> runPython(
    const torch::distributed::rpc::RequestCallbackImpl& callback, const pybind11::object& function,
    bool isAsync);

/// A completed future in the place of runPython()'s, where something has kept the function from running. A Python exception
/// keeps its type, as if the function had raised it; `type` is that of the future for any other one. Takes the GIL.
c10::intrusive_ptr<torch::distributed::rpc::JitFuture> raised(
    const std::exception_ptr& error, at::TypePtr type);

} // namespace torchwire
