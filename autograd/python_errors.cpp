#include "autograd/python_errors.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

namespace torchwire {
namespace {

namespace py = pybind11;

bool isFinalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

class PythonThreadState {
 public:
  PythonThreadState() {
    if (Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() == nullptr) {
      state_ = PyThreadState_New(PyInterpreterState_Main());
    }
  }
  ~PythonThreadState() {
    if (state_ != nullptr && Py_IsInitialized() != 0 &&
        !isFinalizing()) { // else Python has ended it
      PyEval_RestoreThread(state_);
      PyThreadState_Clear(state_);
      PyThreadState_DeleteCurrent();
    }
  }
  PythonThreadState(const PythonThreadState&) = delete;
  PythonThreadState& operator=(const PythonThreadState&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

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

void keepPythonThreadState() {
  thread_local const PythonThreadState state;
}

ErrorText describeException(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const python_error& e) {
    return {e.what(), e.value == nullptr ? "" : formatTraceback(e)};
  } catch (const std::exception& e) {
    return {e.what(), ""};
  } catch (...) {
    return {"an exception of unknown type", ""};
  }
}

} // namespace torchwire
