// Tensors that have come, and where they are to go.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

namespace torchwire {

struct DecodedTensors {
  std::vector<at::Tensor> tensors; // on the CPU
  std::vector<c10::Device> devices; // that they are for, one for each; empty: all for the CPU
};

} // namespace torchwire
