// What the environment says about the stand-in accelerator. Read once, at the first look.
#pragma once

#include <chrono>
#include <cstdint>

namespace torchwire::accelerator {

/// A value.
struct Settings {
  int devices; // TORCHWIRE_TEST_ACCELERATOR_DEVICES
  uint64_t seed; // TORCHWIRE_TEST_ACCELERATOR_SEED: of the streams' delays
  std::chrono::microseconds
      maxDelay; // TORCHWIRE_TEST_ACCELERATOR_MAX_DELAY_US: before a piece of work
};

inline constexpr int kMaxDevices = 16;

/// Never throws: what is no number, or out of bounds, is as if it were not there. Thread-safe.
const Settings& settings() noexcept;

} // namespace torchwire::accelerator
