#include "plugin/function_wrapper.h"

#include <cxxabi.h>

#include <exception>
#include <memory>
#include <utility>

namespace py = pybind11;

namespace torchwire {
namespace {

/// What a function of Python's refers to as long as it lives.
struct Definition {
  std::string name;
  std::string doc;
  FunctionBody body;
  PyMethodDef method{};
};

/// Has Python raise it, as pybind11 would.
void setError(const std::exception_ptr& error) {
  try {
    py::cpp_function([&error] { std::rethrow_exception(error); })();
  } catch (py::error_already_set& raised) {
    raised.restore();
  }
}

PyObject* run(PyObject* capsule, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  const auto* const definition =
      static_cast<const Definition*>(PyCapsule_GetPointer(capsule, nullptr));
  try {
    return definition->body(Arguments(values, positional, names)).release().ptr();
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (abi::__forced_unwind&) { // by which a daemon thread leaves Python as that ends
    throw;
  } catch (...) {
    setError(std::current_exception());
  }
  return nullptr;
}

} // namespace

py::handle Arguments::find(Py_ssize_t position, const char* name) const {
  if (position < positional_) {
    return values_[position];
  }
  const Py_ssize_t named = names_ == nullptr ? 0 : PyTuple_GET_SIZE(names_);
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names_, i), name) == 0) {
      return values_[positional_ + i];
    }
  }
  return {};
}

py::object Arguments::passTo(const py::function& function) const {
  PyObject* const result = PyObject_Vectorcall(function.ptr(), values_, positional_, names_);
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(result);
}

py::object makeFunction(std::string name, std::string doc, FunctionBody body) {
  auto definition =
      std::make_unique<Definition>(Definition{std::move(name), std::move(doc), std::move(body)});
  definition->method = {
      definition->name.c_str(), reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&run)),
      METH_FASTCALL | METH_KEYWORDS, definition->doc.c_str()};
  PyMethodDef* const method = &definition->method;
  const py::capsule owner(
      definition.release(), [](void* owned) { delete static_cast<Definition*>(owned); });
  return py::reinterpret_steal<py::object>(PyCFunction_New(method, owner.ptr()));
}

py::object makeMethod(std::string name, std::string doc, FunctionBody body) {
  const auto function = makeFunction(std::move(name), std::move(doc), std::move(body));
  return py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
}

} // namespace torchwire
