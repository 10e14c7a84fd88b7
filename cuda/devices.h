// CUDA tensors and device maps. The only folder that will have CUDA conditionals; for now it refuses.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torchwire::cuda {

/// Throws c10::Error that says so if one of the tensors is on a CUDA device. `what` is "Request" or
/// "Response".
void refuseCudaTensors(const std::vector<at::Tensor>& tensors, const std::string& what);

/// Throws std::runtime_error that says so unless a worker was started without device maps and devices.
/// `maps` and `devices` count the entries of those options.
void refuseDeviceMaps(const std::string& worker, size_t maps, size_t devices);

} // namespace torchwire::cuda
