#include "test/support/accelerator/hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/util/Exception.h>

#include "test/support/accelerator/device.h"
#include "test/support/accelerator/device_memory.h"
#include "test/support/accelerator/launch.h"
#include "test/support/accelerator/pinned_memory.h"

namespace torchwire::accelerator {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override {
    return true; // nothing is to be set up
  }

  c10::DeviceIndex deviceCount() const override {
    return accelerator::deviceCount();
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return currentDevice();
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    accelerator::setCurrentDevice(static_cast<c10::DeviceIndex>(device(index).index));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = currentDevice();
    setCurrentDevice(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? currentDevice() : exchangeDevice(index);
  }

  bool isPinnedPtr(const void* address) const override {
    return isPinned(address);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinnedAllocator();
  }
  c10::Device getDeviceFromPtr(void* address) const override {
    for (c10::DeviceIndex index = 0; index < accelerator::deviceCount(); ++index) {
      if (device(index).memory.contains(address)) {
        return {kType, index};
      }
    }
    TORCH_CHECK(false, "the address is in no memory of the stand-in accelerator");
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resizeStorage(storage, bytes);
  }
};

} // namespace

void registerHooks() {
  c10::SetAllocator(kType, deviceAllocator());
  at::setHostAllocator(kType, pinnedAllocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks); // libtorch keeps it for good
}

} // namespace torchwire::accelerator
