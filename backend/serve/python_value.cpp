#include "backend/serve/python_value.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <stdexcept>
#include <utility>

#include "backend/serve/python_rpc.h"

namespace torchwire {

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;

rpc::SerializedPyObj serializePython(at::IValue value) {
  const MeasuredGil gil; // also for the destructor of what toPyObject returns
  return PythonRpc::get().pickled(torch::jit::toPyObject(std::move(value)));
}

c10::intrusive_ptr<rpc::JitFuture> runPython(
    const rpc::RequestCallbackImpl& callback, const py::object& function, bool isAsync) {
  try {
    return callback.runPythonFunction(function, {}, isAsync);
  } catch (const py::reference_cast_error&) {
    throw std::runtime_error(
        "Functions decorated with @rpc.functions.async_execution must return a "
        "torch.futures.Future object, but got None");
  }
}

namespace {

/// What a function gives that raises the exception.
at::IValue remoteException(py::error_already_set& error) {
  const MeasuredGil gil;
  const auto& python = PythonRpc::get();
  if (error.trace()) {
    PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  }
  py::list errors;
  errors.append(error.value());
  const py::object call = python.PythonUDF(python.raise, py::make_tuple(errors), py::dict());
  return torch::jit::toIValue(python.runFunction(call), at::PyObjectType::get());
}

} // namespace

c10::intrusive_ptr<rpc::JitFuture> raised(const std::exception_ptr& error, at::TypePtr type) {
  try {
    std::rethrow_exception(error);
  } catch (py::error_already_set& e) {
    auto value = c10::make_intrusive<rpc::JitFuture>(at::PyObjectType::get());
    try {
      value->markCompleted(remoteException(e));
    } catch (const std::exception& unusual) { // no Exception, but SystemExit, say
      value->setError(std::make_exception_ptr(std::runtime_error(unusual.what())));
    }
    return value;
  } catch (...) {
    auto failed = c10::make_intrusive<rpc::JitFuture>(std::move(type));
    failed->setError(error);
    return failed;
  }
}

} // namespace torchwire
