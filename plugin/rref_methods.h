// Methods of RRefs that wait.
#pragma once

#include <pybind11/pybind11.h>

namespace torchwire {

void bindRRefMethods(pybind11::module_& module);

} // namespace torchwire
