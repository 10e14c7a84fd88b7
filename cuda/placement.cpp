#include "cuda/placement.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace torchwire::cuda {
namespace {

// CUDA copies from memory that is not pinned as well, but what is larger only once the stream has come to it: the host would
// wait for all that has been given to the device.
constexpr size_t kLeastStaged = (64 << 10) + 1;

// The device reads one piece while the next is copied to pinned memory.
constexpr int64_t kPiece = 2 << 20;

/// Its memory, from first to last byte. Undefined if that is not just its elements, in whatever order.
at::Tensor memoryOf(const at::Tensor& tensor) {
  const bool isDense = hasOneMemory(tensor) && tensor.is_non_overlapping_and_dense();
  if (!isDense || tensor.is_conj() || tensor.is_neg()) {
    return {};
  }
  return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte);
}

/// In pinned memory, whose allocator knows when a device has read it. Without any left, as it is.
at::Tensor pinned(const at::Tensor& bytes) {
  at::Tensor copy;
  try {
    copy = at::empty(bytes.sizes(), bytes.options().pinned_memory(true));
  } catch (const c10::Error&) {
    return bytes;
  }
  std::memcpy(copy.mutable_data_ptr(), bytes.const_data_ptr(), bytes.nbytes());
  return copy;
}

/// Both are bytes.
void copyByPieces(const at::Tensor& from, const at::Tensor& to) {
  for (int64_t begin = 0; begin < from.numel(); begin += kPiece) {
    const int64_t size = std::min(kPiece, from.numel() - begin);
    to.narrow(0, begin, size).copy_(pinned(from.narrow(0, begin, size)), /* non_blocking */ true);
  }
}

at::Tensor placedOn(c10::Device device, const at::Tensor& tensor) {
  at::globalContext().lazyInitDevice(device.type());
  const at::Tensor memory = memoryOf(tensor);
  at::Tensor placed;
  if (memory.defined() && tensor.nbytes() >= kLeastStaged) {
    placed = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
    copyByPieces(memory, memoryOf(placed));
  } else {
    // The host's memory is no device's, so that the copy has read it when this returns.
    placed = tensor.to(device, /* non_blocking */ true);
  }
  return placed.set_requires_grad(tensor.requires_grad());
}

std::string sizeOf(const at::Tensor& tensor) {
  if (!hasOneMemory(tensor)) {
    return "";
  }
  std::ostringstream text;
  text << ", of shape " << tensor.sizes() << " and " << tensor.nbytes() << " bytes,";
  return text.str();
}

} // namespace

bool hasOneMemory(const at::Tensor& tensor) {
  return !tensor.is_nested() && tensor.layout() == at::kStrided && !tensor.is_quantized();
}

void placeOnDevices(
    std::vector<at::Tensor>& tensors, const std::vector<c10::Device>& devices,
    const std::string& worker) {
  const at::NoGradGuard noGrad;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].is_cpu() || !tensors[i].defined()) {
      continue;
    }
    try {
      tensors[i] = placedOn(devices[i], tensors[i]);
    } catch (const c10::Error& e) {
      throw std::runtime_error(
          "worker '" + worker + "' cannot put tensor " + std::to_string(i) + sizeOf(tensors[i]) +
          " on its " + devices[i].str() + ": " + e.what_without_backtrace() +
          ". Free memory on that device, or map the sender's device to another one");
    }
  }
}

} // namespace torchwire::cuda
