#include "cuda/host_copies.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "cuda/streams.h"

namespace torchwire::cuda {
namespace {

bool isOnDevice(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu();
}

/// A strided one is copied without waiting, into memory that the device can write to. Sparse ones and the like, which have
/// several memories, wait.
at::Tensor beginCopyToHost(const at::Tensor& source) {
  at::Tensor copy;
  if (source.layout() == at::kStrided && !source.is_quantized() && !source.is_nested()) {
    copy = at::empty_like(
        source, source.options().device(at::kCPU).requires_grad(false).pinned_memory(true));
    copy.copy_(source, /* non_blocking */ true);
  } else {
    copy = source.to(at::kCPU);
  }
  return copy.set_requires_grad(source.requires_grad());
}

at::Tensor placedOn(c10::Device device, const at::Tensor& tensor) {
  at::globalContext().lazyInitDevice(device.type());
  // The host's memory is no device's, so that the copy has read it when copy_ returns.
  at::Tensor placed = tensor.to(device, /* non_blocking */ true);
  return placed.set_requires_grad(tensor.requires_grad());
}

} // namespace

bool HostCopies::areNeeded(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), isOnDevice);
}

HostCopies::HostCopies(std::vector<at::Tensor> tensors) : sources_(std::move(tensors)) {
  const at::NoGradGuard noGrad;
  for (const at::Tensor& source : sources_) {
    copies_.push_back(isOnDevice(source) ? beginCopyToHost(source) : source);
  }
  for (const c10::Stream stream : currentStreams(acceleratorsOf(sources_))) {
    copied_.emplace_back(stream.device_type());
    copied_.back().record(stream);
  }
}

std::vector<at::Tensor> HostCopies::finish() {
  for (const c10::Event& copied : copied_) {
    copied.synchronize();
  }
  sources_.clear();
  return std::move(copies_);
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
      TORCH_CHECK(
          false, "worker '", worker, "' cannot put tensor ", i, ", of shape ", tensors[i].sizes(),
          " and ", tensors[i].nbytes(), " bytes, on its ", devices[i], ": ",
          e.what_without_backtrace(),
          ". Free memory on that device, or map the sender's device to another one");
    }
  }
}

} // namespace torchwire::cuda
