// What the environment says about the stand-in. Read once, at the first look.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace torchwire::cuda_stand_in {

inline constexpr int kMaxDevices = 16;

/// A value. Each field's variable starts with TORCHWIRE_TEST_CUDA_.
struct Settings {
  int devices; // DEVICES: of the machine
  std::vector<int>
      visible; // CUDA_VISIBLE_DEVICES: those of them that this process sees, in its order
  uint64_t seed; // SEED: of the streams' delays
  std::chrono::microseconds maxDelay; // MAX_DELAY_US: before an operation of a stream
  size_t memory; // MEMORY_MB: of each device, in bytes here
  bool peerAccess; // PEER_ACCESS: between different devices
  bool
      exclusive; // EXCLUSIVE: the devices' compute mode forbids other processes, so there is no IPC
  bool hostAccess; // HOST_ACCESS: the CPU may touch device memory
};

/// What is no number, or out of bounds, is as if it were not there. Thread-safe.
const Settings& settings();

} // namespace torchwire::cuda_stand_in
