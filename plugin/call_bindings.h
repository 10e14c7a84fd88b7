// The calls part of the extension module.
#pragma once

#include <pybind11/pybind11.h>

namespace torchwire {

/// Adds what torchwire.calls needs. Keeps the GIL.
void bindCalls(pybind11::module_& module);

} // namespace torchwire
