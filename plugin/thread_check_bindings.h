// What tests ask of the checks of threads.
#pragma once

#include <pybind11/pybind11.h>

namespace torchwire {

/// Turns the watch of the GIL on, where the checks are, and binds what tests of the checks need.
void bindThreadChecks(pybind11::module_& module);

} // namespace torchwire
