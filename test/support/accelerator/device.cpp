#include "test/support/accelerator/device.h"

#include <pthread.h>

#include <array>
#include <string>

#include <c10/util/Exception.h>

#include "test/support/accelerator/settings.h"

namespace torchwire::accelerator {
namespace {

using Devices = std::vector<std::unique_ptr<Device>>;

std::atomic<bool> forked{false};

/// Threads do not survive a fork; without any, nothing was lost.
void noteFork() {
  forked.store(WorkStream::threads() > 0);
}

Devices& devices() {
  static Devices* const all = [] {
    auto* const made = new Devices;
    for (int index = 0; index < settings().devices; ++index) {
      made->push_back(std::make_unique<Device>(index));
    }
    pthread_atfork(nullptr, nullptr, &noteFork);
    return made;
  }();
  return *all;
}

struct Current {
  c10::DeviceIndex device = 0;
  std::array<c10::StreamId, kMaxDevices> streams{};
};
thread_local Current current;

} // namespace

Device::Device(int theIndex) : index(theIndex) {
  for (c10::StreamId id = 0; id <= kPooledStreams; ++id) {
    streams_.push_back(std::make_unique<WorkStream>(index, id, health));
  }
}

WorkStream& Device::stream(c10::StreamId id) {
  TORCH_CHECK(
      id >= 0 && id <= kPooledStreams, "standin:", index, " has no stream with the id ", id);
  return *streams_[static_cast<size_t>(id)];
}

c10::StreamId Device::takePooledStream() {
  return 1 + taken_++ % kPooledStreams;
}

void Device::check() const {
  const auto fail = [this](const std::string& reason) {
    throw c10::AcceleratorError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 1,
        "standin:" + std::to_string(index) + " " + reason);
  };
  if (isForked()) {
    fail("cannot be used in a process that was forked from one that has used it");
  }
  if (health.isLost()) {
    fail("is lost: " + health.reason());
  }
}

void Device::wait(const Completion& completion, Wait kind) const {
  check();
  countWait(kind);
  completion.wait();
  check();
}

void Device::synchronize(Wait kind) const {
  check();
  countWait(kind);
  for (const auto& stream : streams_) {
    stream->record()->wait();
  }
  check();
}

Device& device(c10::DeviceIndex index) {
  const c10::DeviceIndex found = index < 0 ? currentDevice() : index;
  TORCH_CHECK(found < deviceCount(), "there is no device standin:", static_cast<int>(found));
  return *devices()[static_cast<size_t>(found)];
}

c10::DeviceIndex deviceCount() noexcept {
  return static_cast<c10::DeviceIndex>(settings().devices);
}

WorkStream& workStream(const c10::Stream& stream) {
  return device(stream.device_index()).stream(stream.id());
}

c10::DeviceIndex currentDevice() noexcept {
  return current.device;
}

void setCurrentDevice(c10::DeviceIndex index) noexcept {
  current.device = index;
}

c10::Stream currentStream(c10::DeviceIndex index) noexcept {
  const c10::DeviceIndex found = index < 0 ? currentDevice() : index;
  return c10::Stream(
      c10::Stream::UNSAFE, c10::Device(kType, found), current.streams[static_cast<size_t>(found)]);
}

void setCurrentStream(const c10::Stream& stream) noexcept {
  current.streams[static_cast<size_t>(stream.device_index())] = stream.id();
}

WorkStream& currentWorkStream(Device& device) {
  return workStream(currentStream(static_cast<c10::DeviceIndex>(device.index)));
}

bool isForked() noexcept {
  return forked.load();
}

void shutDown() {
  if (isForked() || WorkStream::threads() == 0) {
    return; // nobody to join
  }
  for (const auto& device : devices()) {
    for (const auto& stream : device->streams()) {
      stream->stop();
    }
  }
  for (const auto& device : devices()) {
    for (const auto& stream : device->streams()) {
      stream->join();
    }
  }
}

} // namespace torchwire::accelerator
