// How libtorch reaches devices, streams and events: autograd, futures, torch.Stream and torch.Event, torch.accelerator.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include "test/support/accelerator/device.h"
#include "test/support/accelerator/device_memory.h"
#include "test/support/accelerator/event.h"

namespace torchwire::accelerator {
namespace {

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return kType;
  }

  // ---- devices ----

  c10::Device getDevice() const override {
    return {kType, currentDevice()};
  }
  c10::Device exchangeDevice(c10::Device next) const override {
    const c10::Device previous = getDevice();
    setDevice(next);
    return previous;
  }
  void setDevice(c10::Device next) const override {
    setCurrentDevice(static_cast<c10::DeviceIndex>(device(next.index()).index));
  }
  void uncheckedSetDevice(c10::Device next) const noexcept override {
    if (next.has_index()) {
      setCurrentDevice(next.index());
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return accelerator::deviceCount();
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    device(index).synchronize(Wait::device);
  }

  // ---- streams ----

  c10::Stream getStream(c10::Device of) const override {
    return currentStream(indexOf(of));
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    return streamOf(of, kDefaultStream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool /*isHighPriority*/) const override {
    return streamOf(of, device(of.index()).takePooledStream());
  }
  c10::Stream getNewStream(c10::Device of, int /*priority*/) const override {
    return getStreamFromGlobalPool(of, false);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    workStream(next); // that there is one
    const c10::Stream previous = currentStream(next.device_index());
    setCurrentStream(next);
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return &workStream(stream);
  }
  bool queryStream(const c10::Stream& stream) const override {
    device(stream.device_index()).check();
    return workStream(stream).isIdle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Device& of = device(stream.device_index());
    of.wait(*workStream(stream).record(), Wait::stream);
  }

  // ---- events ----

  void record(
      void** event, const c10::Stream& stream, const c10::DeviceIndex index,
      const c10::EventFlag /*flag*/) const override {
    Device& of = device(stream.device_index());
    of.check();
    TORCH_CHECK(
        index < 0 || index == stream.device_index(),
        "an event of standin:", static_cast<int>(index),
        " cannot be recorded on a stream of standin:", of.index);
    if (*event == nullptr) {
      *event = new Event(of);
    }
    static_cast<Event*>(*event)->record(workStream(stream));
  }

  void block(void* event, const c10::Stream& stream) const override {
    device(stream.device_index()).check();
    if (const auto recorded = recordedBy(event)) {
      workStream(stream).waitFor(recorded);
    }
  }

  bool queryEvent(void* event) const override {
    const auto recorded = recordedBy(event);
    if (!recorded) {
      return true;
    }
    static_cast<Event*>(event)->device.check();
    return recorded->isComplete();
  }

  void synchronizeEvent(void* event) const override {
    if (const auto recorded = recordedBy(event)) {
      static_cast<Event*>(event)->device.wait(*recorded, Wait::event);
    }
  }

  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Event*>(event); // who waits for its point holds that
  }

  // ---- memory ----

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    recordStream(data, stream);
  }

 private:
  static c10::DeviceIndex indexOf(c10::Device of) {
    return static_cast<c10::DeviceIndex>(device(of.index()).index);
  }
  static c10::Stream streamOf(c10::Device of, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, indexOf(of)), id);
  }
  static std::shared_ptr<Completion> recordedBy(void* event) {
    return event == nullptr ? nullptr : static_cast<Event*>(event)->recorded();
  }
};

const c10::impl::DeviceGuardImplRegistrar registered(kType, new Guard);

} // namespace
} // namespace torchwire::accelerator
