// Functions of Python's in the place of PyTorch's, which they call, with as little in between as Python allows.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstddef>
#include <functional>
#include <string>

namespace torchwire {

/// What a function of Python's is called with. Lives as long as the call.
class Arguments {
 public:
  /// As in CPython's vectorcall protocol: `names` are those of the keyword arguments, whose values come last; or null.
  Arguments(PyObject* const* values, Py_ssize_t positional, PyObject* names)
      : values_(values), positional_(positional), names_(names) {}

  /// How many there are, of both kinds.
  Py_ssize_t count() const {
    return positional_ + (names_ == nullptr ? 0 : PyTuple_GET_SIZE(names_));
  }

  /// The argument at this position or with this name; null where it is not given.
  pybind11::handle find(Py_ssize_t position, const char* name) const;

  /// The first positional one; null where there is none, or it is of another type.
  template <typename T>
  const T* first() const {
    pybind11::detail::make_caster<T> caster;
    const bool isOne = positional_ > 0 && caster.load(values_[0], /* convert */ false);
    return isOne ? &pybind11::detail::cast_op<const T&>(caster) : nullptr;
  }

  /// What `function` returns for the same arguments.
  pybind11::object passTo(const pybind11::function& function) const;

 private:
  PyObject* const* const values_;
  const Py_ssize_t positional_;
  PyObject* const names_;
};

/// What such a function does: it may throw whatever pybind11 knows how to raise.
using FunctionBody = std::function<pybind11::object(const Arguments&)>;

pybind11::object makeFunction(std::string name, std::string doc, FunctionBody body);
/// To be set in a class.
pybind11::object makeMethod(std::string name, std::string doc, FunctionBody body);

} // namespace torchwire
