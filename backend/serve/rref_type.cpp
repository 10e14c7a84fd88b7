#include "backend/serve/rref_type.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <optional>

namespace torchwire {

namespace py = pybind11;

void forgetFailedType(torch::distributed::rpc::PyRRef& rref) {
  std::optional<py::object>& type = rref.*pointerTo(RRefType());
  if (type && py::isinstance<torch::jit::PythonFutureWrapper>(*type)) {
    const auto& known = *type->cast<torch::jit::PythonFutureWrapper&>().fut;
    if (known.completed() && known.hasError()) {
      type.reset();
    }
  }
}

} // namespace torchwire
