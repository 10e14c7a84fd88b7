#include "test/support/accelerator/launch.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

namespace torchwire::accelerator {

Device& deviceOf(const at::Tensor& tensor) {
  return device(tensor.device().index());
}

bool isOnDevice(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

at::Tensor hostView(const at::Tensor& tensor) {
  void* bytes = tensor.numel() == 0 ? nullptr : const_cast<void*>(tensor.const_data_ptr());
  if (bytes != nullptr && isOnDevice(tensor)) {
    bytes = deviceOf(tensor).memory.store(bytes);
    TORCH_CHECK(bytes != nullptr, "a tensor is in memory that standin did not allocate");
  }
  at::Tensor view = at::from_blob(
      bytes, tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  keepNumber(tensor, view);
  return view;
}

void keepNumber(const at::Tensor& tensor, const at::Tensor& other) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    other.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
}

void launch(Device& device, WorkStream& stream, std::function<void()> work) {
  device.check();
  stream.enqueue([work = std::move(work)] {
    const at::AutoDispatchBelowADInplaceOrView noAutograd;
    // A pool of threads for each stream's thread would be more than a small machine can take.
    const at::ParallelGuard alone(true);
    try {
      work();
    } catch (const c10::Error& e) {
      throw std::runtime_error(
          e.what_without_backtrace()); // a loss of the device is reported again and again
    }
  });
}

void resizeStorage(const c10::Storage& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "the storage cannot be resized");
  Device& device = accelerator::device(storage.device().index());
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr next = storage.allocator()->allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept > 0) {
    std::byte* const to = device.memory.store(next.get());
    const std::byte* const from = device.memory.store(storage.data());
    launch(device, currentWorkStream(device), [to, from, kept] { std::memcpy(to, from, kept); });
  }
  storage.set_data_ptr_noswap(std::move(next));
  storage.set_nbytes(bytes);
}

} // namespace torchwire::accelerator
