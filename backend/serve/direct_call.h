// Calls of Python functions without pickle and without libtorch's steps in between: a PYTHON_CALL whose body torchwire
// has written. What it cannot write goes as libtorch's; a callee serves both, and answers each in its own way.
//
// | body         | first byte                         | then                                                    |
// | ------------ | ---------------------------------- | ------------------------------------------------------- |
// | PYTHON_CALL  | 0 or 1: libtorch's; 1 is async     | the pickled PythonUDF                                   |
// |              | 2 or 3: direct; 3 is async         | module and name of the function, args, kwargs           |
// |              |                                    | (python_codec.h); where the caller runs in a trace      |
// |              |                                    | context of OpenTelemetry's, a dict that names it        |
// | PYTHON_RET   | 0x80, as pickles begin: libtorch's | the pickled result                                      |
// |              | 1: direct; only as the answer to a | the result                                              |
// |              | direct call                        |                                                         |
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/request_callback_impl.h>
#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "backend/serve/direct_rref.h"
#include "backend/serve/remote_error.h"

namespace torchwire {

/// The request, or null where something in it has to be pickled: then nothing has happened. `args` is a tuple, `kwargs` a
/// dict, or something in their place that is left to pickle. RRefs among them are `rrefs`'s. With the GIL.
c10::intrusive_ptr<torch::distributed::rpc::Message> writeDirectCall(
    PyObject* function, PyObject* args, PyObject* kwargs, bool isAsync, DirectRRefs& rrefs);

/// Runs the function of a direct call, holding the GIL once where it is not async; takes its tensors. The future is that
/// of the response. Throws what fails the request.
c10::intrusive_ptr<torch::distributed::rpc::JitFuture> serveDirectCall(
    const torch::distributed::rpc::RequestCallbackImpl& callback,
    torch::distributed::rpc::Message& request);

/// The same error without the exception, whose frames may hold what it is kept with: Python makes another one of it wherever
/// it is raised. Throws what is no error of a call: what a handler of a signal has raised, or no Exception. With the GIL.
RemoteError withoutFrames(const pybind11::error_already_set& raised, const std::string& text);

/// The response to a call of a Python function: what is in it, where libtorch has made it part of an autograd context, in
/// which its tensors get a recv function. Without the GIL. Throws c10::Error.
c10::intrusive_ptr<torch::distributed::rpc::Message> unwrapped(
    c10::intrusive_ptr<torch::distributed::rpc::Message> response);

/// The result in the response to a direct call, or in one that unwrapped() has returned; takes its tensors. With the GIL.
/// Throws FormatError; and what the function has raised, or the result when it was unpickled, as RemoteError.
pybind11::object readDirectResult(torch::distributed::rpc::Message& response);
pybind11::object readPickledResult(torch::distributed::rpc::Message& response);
/// The value of an RRef, as its owner has pickled it. Throws pybind11::error_already_set, as PyTorch raises what has kept the
/// value from being made. With the GIL.
pybind11::object readFetched(const torch::distributed::rpc::SerializedPyObj& value);

/// The same, as the value of a future. A pickled one is unpickled now, and takes the GIL for it; of a direct one the Python
/// object is made when it is first asked for, by who holds the GIL anyway.
at::IValue directResult(c10::intrusive_ptr<torch::distributed::rpc::Message> response);
at::IValue pickledResult(c10::intrusive_ptr<torch::distributed::rpc::Message> response);

} // namespace torchwire
