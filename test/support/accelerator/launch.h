// How operators put their work on streams.
#pragma once

#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "test/support/accelerator/device.h"

namespace torchwire::accelerator {

/// The device of a tensor that is on one.
Device& deviceOf(const at::Tensor& tensor);
bool isOnDevice(const at::Tensor& tensor);

/// A CPU tensor of the same bytes, with the same sizes and strides, for the streams' threads: it does not keep the
/// memory allocated, as a kernel's pointer does not. Throws c10::Error for device memory that is not ours.
at::Tensor hostView(const at::Tensor& tensor);

/// A number of the program's, which has become a tensor, decides less about the result's type than a tensor does: so
/// does `other` if it stands for one.
void keepNumber(const at::Tensor& tensor, const at::Tensor& other);

/// Enqueues `work` as a kernel: it runs without autograd, and on the stream's thread alone. Throws if the device is
/// lost.
void launch(Device& device, WorkStream& stream, std::function<void()> work);

/// Gives the storage this size; its bytes are copied on the current stream as far as they fit.
void resizeStorage(const c10::Storage& storage, size_t bytes);

} // namespace torchwire::accelerator
