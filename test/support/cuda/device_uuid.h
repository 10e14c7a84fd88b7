// The UUIDs of the machine's devices: the same in every process, as TensorPipe compares them.
#pragma once

#include <array>
#include <string>

namespace torchwire::cuda_stand_in {

/// Of the machine's device, which is not its number in a process with CUDA_VISIBLE_DEVICES.
std::array<unsigned char, 16> uuidBytes(int machineDevice);

/// As NVML writes it: GPU-00112233-…
std::string uuidText(int machineDevice);

} // namespace torchwire::cuda_stand_in
