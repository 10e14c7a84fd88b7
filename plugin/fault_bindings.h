// The bindings of the fault injection; see torchwire.testing. In a build with it only.
#pragma once

#include <pybind11/pybind11.h>

namespace torchwire {

/// After LinkInterceptor has been bound.
void bindFaults(pybind11::module_& module);

} // namespace torchwire
