// Tensors that have come to the host, on their way to devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <vector>

namespace torchwire::cuda {

/// Whether its elements are in one piece of memory: those of sparse tensors and the like are not.
bool hasOneMemory(const at::Tensor& tensor);

/// Puts copies of the tensors that are not for the CPU on their devices: made on this thread's current streams, and not
/// waited for. `worker` is named in errors. Throws std::runtime_error that names tensor and device.
void placeOnDevices(
    std::vector<at::Tensor>& tensors, const std::vector<c10::Device>& devices,
    const std::string& worker);

} // namespace torchwire::cuda
