// Futures of calls: waiting for them, giving them up, and what follows them.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace torchwire {

void bindFutures(pybind11::module_& module);

} // namespace torchwire
