#include "cuda/devices.h"

#include <c10/util/Exception.h>

#include <stdexcept>

namespace torchwire::cuda {

void refuseCudaTensors(const std::vector<at::Tensor>& tensors, const std::string& what) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool onCuda = tensors[i].defined() && tensors[i].is_cuda();
    TORCH_CHECK(
        !onCuda, what, ": tensor ", i, " is on ", tensors[i].device(),
        ", but this version of torchwire sends CPU tensors only; move it with .cpu() before the "
        "call");
  }
}

void refuseDeviceMaps(const std::string& worker, size_t maps, size_t devices) {
  if (maps != 0 || devices != 0) {
    throw std::runtime_error(
        "worker '" + worker + "' was given " + (maps != 0 ? "device_maps" : "devices") +
        ", but this version of torchwire sends CPU tensors only; leave the option out");
  }
}

} // namespace torchwire::cuda
