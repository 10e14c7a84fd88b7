#include "test/support/cuda/settings.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>

#include "test/support/cuda/device_uuid.h"

namespace torchwire::cuda_stand_in {
namespace {

uint64_t numberIn(const char* variable, uint64_t otherwise, uint64_t min, uint64_t max) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') {
    return otherwise;
  }
  char* end = nullptr;
  const uint64_t number = std::strtoull(text, &end, 10);
  return *end == '\0' && number >= min && number <= max ? number : otherwise;
}

/// The device of the machine that an entry of CUDA_VISIBLE_DEVICES names, by number or UUID, or -1.
int deviceNamed(const std::string& entry, int devices) {
  for (int device = 0; device < devices; ++device) {
    if (entry == std::to_string(device) ||
        (entry.starts_with("GPU-") && uuidText(device).starts_with(entry))) {
      return device;
    }
  }
  return -1;
}

std::vector<int> visibleDevices(int devices) {
  std::vector<int> visible;
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int device = 0; device < devices; ++device) {
      visible.push_back(device);
    }
    return visible;
  }
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const int device = deviceNamed(entry, devices);
    // As with CUDA, the first entry that names no device ends the list.
    if (device < 0 || std::find(visible.begin(), visible.end(), device) != visible.end()) {
      break;
    }
    visible.push_back(device);
  }
  return visible;
}

Settings read() {
  const int devices = static_cast<int>(numberIn("TORCHWIRE_TEST_CUDA_DEVICES", 2, 0, kMaxDevices));
  return {
      .devices = devices,
      .visible = visibleDevices(devices),
      .seed = numberIn("TORCHWIRE_TEST_CUDA_SEED", 1, 0, UINT64_MAX),
      .maxDelay = std::chrono::microseconds(
          numberIn("TORCHWIRE_TEST_CUDA_MAX_DELAY_US", 2000, 0, 10'000'000)),
      .memory = numberIn("TORCHWIRE_TEST_CUDA_MEMORY_MB", 4096, 1, 1 << 20) << 20,
      .peerAccess = numberIn("TORCHWIRE_TEST_CUDA_PEER_ACCESS", 1, 0, 1) == 1,
      .exclusive = numberIn("TORCHWIRE_TEST_CUDA_EXCLUSIVE", 0, 0, 1) == 1,
      .hostAccess = numberIn("TORCHWIRE_TEST_CUDA_HOST_ACCESS", 0, 0, 1) == 1,
  };
}

} // namespace

const Settings& settings() {
  // Never destroyed, as nothing here is: the streams' threads run until the very end of the process.
  static const Settings& all = *new Settings(read());
  return all;
}

} // namespace torchwire::cuda_stand_in
