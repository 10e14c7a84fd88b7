// What a worker tells about itself, for Python: metrics, calls under way, traces.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>

#include "plugin/autograd_bindings.h"

namespace torchwire {

void bindMetrics(pybind11::module_& module, AgentClass& agent);

/// The stack of a thread of Python's in text, its innermost frames; empty where there is none. Takes the GIL.
std::string pythonsStackOf(uint64_t thread);

/// What torchwire.observe says to a question of an observer. Takes the GIL. Throws std::runtime_error.
std::string pythonsAnswer(const std::string& question);

} // namespace torchwire
