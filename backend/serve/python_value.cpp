#include "backend/serve/python_value.h"

#include <torch/csrc/distributed/rpc/python_rpc_handler.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <string>
#include <utility>

namespace torchwire {

namespace rpc = torch::distributed::rpc;
namespace py = pybind11;

rpc::SerializedPyObj serializePython(at::IValue value) {
  auto& handler = rpc::PythonRpcHandler::getInstance();
  const py::gil_scoped_acquire gil; // also for the destructor of what toPyObject returns
  std::string problem;
  try {
    return handler.serialize(torch::jit::toPyObject(std::move(value)));
  } catch (py::error_already_set& e) {
    problem = e.what(); // the Python exception itself ends here, while the GIL is held
  }
  TORCH_CHECK(false, problem);
}

} // namespace torchwire
