#include "cuda/streams.h"

#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "cuda/device_record.h"
#include "cuda/mutation.h"

namespace torchwire::cuda {
namespace {

using c10::impl::VirtualGuardImpl;

c10::Stream streamOfItsOwn(c10::Device device) {
  at::globalContext().lazyInitDevice(device.type()); // nobody may have used the device here yet
  return VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream defaultStreamOf(c10::Device device) {
  return VirtualGuardImpl(device.type()).getDefaultStream(device);
}

/// What the stream is given from now on waits for what the other one has been given until now.
void putBehind(const c10::Stream& stream, const c10::Stream& other) {
  if (stream == other) {
    return;
  }
  c10::Event reached(other.device_type());
  reached.record(other);
  reached.block(stream);
}

/// Not a meta tensor, which has neither memory nor streams.
bool isOnAccelerator(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu() && tensor.device().has_index();
}

void addStorages(const at::Tensor& tensor, Storages& storages) {
  if (tensor.layout() == at::kStrided) {
    storages.push_back(tensor.storage().getWeakStorageImpl());
  } else if (tensor.layout() == at::kSparse) {
    addStorages(tensor._indices(), storages);
    addStorages(tensor._values(), storages);
  } else { // compressed, by rows or by columns
    const bool byRows = tensor.layout() == at::kSparseCsr || tensor.layout() == at::kSparseBsr;
    addStorages(byRows ? tensor.crow_indices() : tensor.ccol_indices(), storages);
    addStorages(byRows ? tensor.col_indices() : tensor.row_indices(), storages);
    addStorages(tensor.values(), storages);
  }
}

void lend(const at::Tensor& tensor, const c10::Stream& stream) {
  Storages storages;
  addStorages(tensor, storages);
  for (const auto& storage : storages) {
    if (const auto alive = storage.lock()) {
      VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(alive->data_ptr(), stream);
    }
  }
}

void handOver(const at::Tensor& tensor, std::optional<c10::Stream> node) {
  const VirtualGuardImpl device(tensor.device().type());
  const c10::Stream filling = device.getStream(tensor.device());
  if (node == filling) {
    return;
  }
  c10::Event filled(tensor.device().type());
  filled.record(filling);
  if (!node || node->device() != tensor.device()) {
    filled.synchronize();
    return;
  }
  TORCHWIRE_SYNCHRONIZE(gradientsBehindFilling, filled.block(*node));
  TORCHWIRE_SYNCHRONIZE(gradientsLent, lend(tensor, *node));
}

} // namespace

std::vector<c10::Device> acceleratorsAmong(std::vector<c10::Device> devices) {
  std::erase_if(devices, [](c10::Device device) { return device.is_cpu(); });
  std::sort(devices.begin(), devices.end(), comesBefore);
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

std::vector<c10::Device> acceleratorsOf(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (isOnAccelerator(tensor)) {
      devices.push_back(tensor.device());
    }
  }
  return acceleratorsAmong(std::move(devices));
}

Storages deviceStorages(const std::vector<at::Tensor>& tensors) {
  Storages storages;
  for (const at::Tensor& tensor : tensors) {
    if (isOnAccelerator(tensor)) {
      TORCHWIRE_SYNCHRONIZE(futureStorages, addStorages(tensor, storages));
    }
  }
  return storages;
}

std::vector<c10::Stream> currentStreams(const std::vector<c10::Device>& accelerators) {
  std::vector<c10::Stream> streams;
  for (const c10::Device device : accelerators) {
    streams.push_back(VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

OwnStreams::OwnStreams(const std::vector<c10::Device>& devices) {
  if (devices.empty()) {
    return; // as nearly always
  }
  for (const c10::Device device : acceleratorsAmong(devices)) {
    streams_.push_back(streamOfItsOwn(device));
  }
  guard_.emplace(streams_);
}

OwnStreams::OwnStreams(std::vector<c10::Stream> streams) : streams_(std::move(streams)) {
  if (!streams_.empty()) {
    guard_.emplace(streams_);
  }
}

RequestStreams::RequestStreams(const std::vector<c10::Device>& devices, StreamOrder order)
    : OwnStreams(devices), order_(order) {
  begin();
}

RequestStreams::RequestStreams(std::vector<c10::Stream> streams, StreamOrder order)
    : OwnStreams(std::move(streams)), order_(order) {
  begin();
}

void RequestStreams::begin() {
  if (order_ == StreamOrder::none) {
    return;
  }
  for (const c10::Stream& stream : streams_) {
    TORCHWIRE_SYNCHRONIZE(
        requestBehindDefault, putBehind(stream, defaultStreamOf(stream.device())));
  }
}

void RequestStreams::end() {
  if (order_ == StreamOrder::none) {
    return;
  }
  TORCHWIRE_SYNCHRONIZE(defaultBehindRequest, putDefaultsBehind(streams_));
}

void putDefaultsBehind(const std::vector<c10::Stream>& streams) {
  for (const c10::Stream& stream : streams) {
    putBehind(defaultStreamOf(stream.device()), stream);
  }
}

void lendToDefault(const at::Tensor& tensor) {
  if (isOnAccelerator(tensor)) {
    lend(tensor, defaultStreamOf(tensor.device()));
  }
}

void keepForCurrentStream(const at::Tensor& tensor) {
  lend(tensor, VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

void useOnCurrentStream(const at::Tensor& tensor, const c10::Event& filled) {
  const c10::Stream stream = VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
  TORCHWIRE_SYNCHRONIZE(keptBehindFilling, filled.block(stream));
  TORCHWIRE_SYNCHRONIZE(keptLent, lend(tensor, stream));
}

void handOver(const std::vector<at::Tensor>& tensors, std::optional<c10::Stream> node) {
  for (const at::Tensor& tensor : tensors) {
    if (isOnAccelerator(tensor)) {
      handOver(tensor, node);
    }
  }
}

} // namespace torchwire::cuda
