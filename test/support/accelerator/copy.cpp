#include "test/support/accelerator/copy.h"

#include <utility>

#include <c10/util/Exception.h>

#include "test/support/accelerator/launch.h"
#include "test/support/accelerator/pinned_memory.h"

namespace torchwire::accelerator {
namespace {

thread_local bool forFallback = false;

void copyOn(Device& device, WorkStream& stream, const at::Tensor& from, const at::Tensor& to) {
  launch(device, stream, [source = hostView(from), destination = hostView(to)] {
    destination.copy_(source);
  });
}

void copyBetweenDevices(const at::Tensor& from, const at::Tensor& to) {
  Device& source = deviceOf(from);
  Device& destination = deviceOf(to);
  destination.check();
  WorkStream& copying = currentWorkStream(source);
  WorkStream& receiving = currentWorkStream(destination);
  if (&copying != &receiving) {
    copying.waitFor(receiving.record());
  }
  copyOn(source, copying, from, to);
  if (&copying != &receiving) {
    receiving.waitFor(copying.record());
  }
}

void copyToDevice(const at::Tensor& from, const at::Tensor& to, bool nonBlocking) {
  Device& device = deviceOf(to);
  WorkStream& stream = currentWorkStream(device);
  if (isPinned(from.const_data_ptr())) {
    recordPinned(from.const_data_ptr(), currentStream(to.device().index()));
    copyOn(device, stream, from, to);
  } else {
    launch(device, stream, [taken = from.clone(), destination = hostView(to)] {
      destination.copy_(taken);
    });
  }
  if (!nonBlocking && !forFallback) {
    device.wait(*stream.record(), Wait::copy);
  }
}

void copyToHost(const at::Tensor& from, const at::Tensor& to, bool nonBlocking) {
  Device& device = deviceOf(from);
  WorkStream& stream = currentWorkStream(device);
  const bool pinned = isPinned(to.const_data_ptr());
  if (pinned) {
    recordPinned(to.const_data_ptr(), currentStream(from.device().index()));
  }
  copyOn(device, stream, from, to);
  if (!pinned || !nonBlocking) {
    device.wait(*stream.record(), forFallback ? Wait::fallback : Wait::copy);
  }
}

} // namespace

at::Tensor copyFrom(const at::Tensor& from, const at::Tensor& to, bool nonBlocking) {
  if (to.numel() == 0) {
    return to;
  }
  const at::Tensor source = from.sizes() == to.sizes() ? from : from.expand_as(to);
  if (isOnDevice(source) && isOnDevice(to)) {
    copyBetweenDevices(source, to);
  } else if (isOnDevice(to)) {
    TORCH_CHECK(source.is_cpu(), "standin cannot copy from ", source.device());
    copyToDevice(source, to, nonBlocking);
  } else {
    TORCH_CHECK(to.is_cpu(), "standin cannot copy to ", to.device());
    copyToHost(source, to, nonBlocking);
  }
  return to;
}

at::Tensor copyFromAndResize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    to.resize_(from.sizes());
  }
  return copyFrom(from, to, false);
}

FallbackCopies::FallbackCopies() : outer_(std::exchange(forFallback, true)) {}

FallbackCopies::~FallbackCopies() {
  forFallback = outer_;
}

} // namespace torchwire::accelerator
