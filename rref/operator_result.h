// How many results a builtin operator has whose RRef a program asks for.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

namespace torchwire {

/// Throws std::invalid_argument if the operator that libtorch would choose for these arguments has no result, or several.
/// libtorch takes the first one's type for the RRef's without looking. Does nothing where none matches, which libtorch
/// reports. With the GIL.
void expectOneResult(
    const std::string& operatorName, const pybind11::args& args, const pybind11::kwargs& kwargs);

} // namespace torchwire
