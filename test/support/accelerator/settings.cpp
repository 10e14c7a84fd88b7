#include "test/support/accelerator/settings.h"

#include <cstdlib>

namespace torchwire::accelerator {
namespace {

uint64_t numberIn(const char* variable, uint64_t otherwise, uint64_t min, uint64_t max) noexcept {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') {
    return otherwise;
  }
  char* end = nullptr;
  const uint64_t number = std::strtoull(text, &end, 10);
  return *end == '\0' && number >= min && number <= max ? number : otherwise;
}

} // namespace

const Settings& settings() noexcept {
  static const Settings read{
      static_cast<int>(numberIn("TORCHWIRE_TEST_ACCELERATOR_DEVICES", 4, 1, kMaxDevices)),
      numberIn("TORCHWIRE_TEST_ACCELERATOR_SEED", 1, 0, UINT64_MAX),
      std::chrono::microseconds(
          numberIn("TORCHWIRE_TEST_ACCELERATOR_MAX_DELAY_US", 2000, 0, 10'000'000))};
  return read;
}

} // namespace torchwire::accelerator
