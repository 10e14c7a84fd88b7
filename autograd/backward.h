// Where every backward pass begins that C++ code of ours is asked for.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>

namespace torchwire {

/// Runs a distributed backward pass and waits for its end: with torchwire's engine while the current agent is
/// torchwire's, else with libtorch's. Throws what the pass failed with. Call it without the GIL. Thread-safe.
void backward(int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph);

} // namespace torchwire
