// Tensors that have come, and where they are to go.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "backend/codec/tensor_targets.h"

namespace torchwire {

struct DecodedTensors {
  std::vector<at::Tensor> tensors; // on the CPU
  TensorTargets targets;
};

} // namespace torchwire
