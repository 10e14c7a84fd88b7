#include "autograd/python_errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "cuda/error_text.h"

namespace torchwire {
namespace {

namespace py = pybind11;

py::object borrowed(PyObject* object) {
  return object == nullptr ? py::none() : py::reinterpret_borrow<py::object>(object);
}

std::string formatTraceback(const python_error& error) {
  const py::gil_scoped_acquire gil;
  try {
    const py::object lines =
        py::module_::import("traceback")
            .attr("format_exception")(
                borrowed(error.type), borrowed(error.value), borrowed(error.traceback));
    return py::str("").attr("join")(lines).cast<std::string>();
  } catch (py::error_already_set& e) { // an exception that cannot be printed; its message has to do
    e.restore();
    PyErr_Clear();
    return "";
  }
}

} // namespace

ErrorText describeException(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const python_error& e) {
    return {e.what(), e.value == nullptr ? "" : formatTraceback(e)};
  } catch (const std::exception& e) {
    return {cuda::reasonOf(e), ""};
  } catch (...) {
    return {"an exception of unknown type", ""};
  }
}

} // namespace torchwire
