// Text for Python that may be anything.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

namespace torchwire {

/// As pybind11 makes a str of text, but for text that is no UTF-8, such as a peer may send: Python's replacement characters
/// stand for what cannot be read. With the GIL.
inline pybind11::object textOf(std::string_view text) {
  return pybind11::reinterpret_steal<pybind11::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

} // namespace torchwire
