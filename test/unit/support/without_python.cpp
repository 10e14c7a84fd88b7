// What of backend/serve needs an interpreter, for programs that have none.

#include <stdexcept>
#include <utility>

#include "backend/serve/python_value.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

rpc::SerializedPyObj serializePython(at::IValue) {
  throw std::runtime_error("there is no Python here");
}

c10::intrusive_ptr<rpc::JitFuture> runPython(
    const rpc::RequestCallbackImpl& callback, const pybind11::object& function, bool isAsync) {
  return callback.runPythonFunction(function, {}, isAsync);
}

c10::intrusive_ptr<rpc::JitFuture> raised(const std::exception_ptr& error, at::TypePtr type) {
  auto failed = c10::make_intrusive<rpc::JitFuture>(std::move(type));
  failed->setError(error);
  return failed;
}

} // namespace torchwire
