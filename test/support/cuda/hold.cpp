#include "test/support/cuda/hold.h"

#include <array>
#include <condition_variable>
#include <mutex>

#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/settings.h"

namespace torchwire::cuda_stand_in {
namespace {

struct Holds {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<int, kMaxDevices> counts{};
};

Holds& holds() {
  static Holds& all = *new Holds;
  return all;
}

} // namespace

void awaitRelease(int device) {
  std::unique_lock lock(holds().mutex);
  holds().changed.wait(lock, [&] { return holds().counts[device] == 0; });
}

} // namespace torchwire::cuda_stand_in

/// No operation of the device's streams begins until as many releases: copies, events and host functions.
TORCHWIRE_EXPORT void torchwire_test_cuda_hold(int device) {
  using namespace torchwire::cuda_stand_in;
  const std::lock_guard lock(holds().mutex);
  if (isDevice(device)) {
    ++holds().counts[device];
  }
}

TORCHWIRE_EXPORT void torchwire_test_cuda_release(int device) {
  using namespace torchwire::cuda_stand_in;
  const std::lock_guard lock(holds().mutex);
  if (isDevice(device) && holds().counts[device] > 0) {
    --holds().counts[device];
    holds().changed.notify_all();
  }
}
