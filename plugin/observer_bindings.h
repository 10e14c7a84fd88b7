// What an observer, who is no member of a group, needs to find its workers and to be let in by them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchwire {

void bindObserver(pybind11::module_& module);

} // namespace torchwire
