// Operators that make tensors, or other tensors of the same memory, and those that are the device's own.
#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/library.h>

#include "test/support/accelerator/copy.h"
#include "test/support/accelerator/device_memory.h"
#include "test/support/accelerator/launch.h"

namespace torchwire::accelerator {
namespace {

const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

c10::Device placeOf(std::optional<c10::Device> asked) {
  const c10::DeviceIndex index = asked && asked->has_index() ? asked->index() : currentDevice();
  return {kType, static_cast<c10::DeviceIndex>(device(index).index)};
}

at::Tensor empty(
    c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<c10::Layout> layout,
    std::optional<c10::Device> where, std::optional<bool> pinned,
    std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "standin has strided tensors only");
  TORCH_CHECK(!pinned.value_or(false), "only CPU memory can be pinned");
  const c10::DeviceGuard guard(placeOf(where));
  return at::detail::empty_generic(
      sizes, deviceAllocator(), keys, c10::dtype_or_default(type), format);
}

at::Tensor emptyStrided(
    c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type,
    std::optional<c10::Layout> layout, std::optional<c10::Device> where,
    std::optional<bool> pinned) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "standin has strided tensors only");
  TORCH_CHECK(!pinned.value_or(false), "only CPU memory can be pinned");
  const c10::DeviceGuard guard(placeOf(where));
  return at::detail::empty_strided_generic(
      sizes, strides, deviceAllocator(), keys, c10::dtype_or_default(type));
}

// ---- other sizes, other memory --------------------------------------------------------------------

/// Sets them, with a storage that is large enough.
void setSizes(const at::Tensor& self, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  auto* const impl = self.unsafeGetTensorImpl();
  if (strides.size() == sizes.size()) {
    impl->set_sizes_and_strides(sizes, strides);
  } else {
    impl->set_sizes_contiguous(sizes);
  }
  const auto offset = static_cast<size_t>(self.storage_offset());
  const size_t needed =
      at::detail::computeStorageNbytes(sizes, impl->strides(), self.element_size(), offset);
  if (self.numel() > 0 && needed > self.storage().nbytes()) {
    resizeStorage(self.storage(), needed);
  }
}

const at::Tensor& resize(
    const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  setSizes(self, sizes, {});
  if (format) {
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& setStorageOffset(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  TORCH_CHECK(source.device().type() == kType, "the storage is not on standin");
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  setSizes(self, sizes, strides);
  return self;
}

at::Tensor& setStorage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.element_size());
  return setStorageOffset(self, std::move(source), 0, elements, {});
}

at::Tensor& setTensor(at::Tensor& self, const at::Tensor& source) {
  return setStorageOffset(
      self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& setNothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage nothing(
      at::Storage::use_byte_size_t(), 0, deviceAllocator()->allocate(0), deviceAllocator(), true);
  return setStorageOffset(self, std::move(nothing), 0, 0, {});
}

// ---- the device's own -----------------------------------------------------------------------------

at::Scalar localScalar(const at::Tensor& self) {
  Device& device = deviceOf(self);
  device.wait(*currentWorkStream(device).record(), Wait::item);
  return at::_local_scalar_dense(hostView(self));
}

void recordOnStream(at::Tensor& self, c10::Stream stream) {
  recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &emptyStrided);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage", &setStorage);
  library.impl("set_.source_Storage_storage_offset", &setStorageOffset);
  library.impl("set_.source_Tensor", &setTensor);
  library.impl("set_", &setNothing);
  library.impl("_local_scalar_dense", &localScalar);
  library.impl("record_stream", &recordOnStream);
  library.impl("_copy_from", &copyFrom);
  library.impl("_copy_from_and_resize", &copyFromAndResize);
}

// Copies do themselves what the marks ask for. Else libtorch would copy the tensor first, which would do the same.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

} // namespace
} // namespace torchwire::accelerator
