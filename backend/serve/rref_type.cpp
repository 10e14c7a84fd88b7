#include "backend/serve/rref_type.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <optional>

namespace torchwire {

namespace py = pybind11;
using torch::distributed::rpc::PyRRef;

namespace {

void forgetFailed(PyRRef& rref) {
  std::optional<py::object>& type = rref.*pointerTo(RRefType());
  if (type && py::isinstance<torch::jit::PythonFutureWrapper>(*type)) {
    const auto& known = *type->cast<torch::jit::PythonFutureWrapper&>().fut;
    if (known.completed() && known.hasError()) {
      type.reset();
    }
  }
}

} // namespace

py::object futureTypeOf(PyRRef& rref, float timeout) {
  forgetFailed(rref);
  return py::cast(rref, py::return_value_policy::reference).attr("_get_type")(timeout, false);
}

py::object typeOf(PyRRef& rref, float timeout) {
  const py::object type = futureTypeOf(rref, timeout);
  try {
    return type.attr("wait")();
  } catch (py::error_already_set&) {
    forgetFailed(rref); // the traceback of its error may keep the RRef
    throw;
  }
}

} // namespace torchwire
