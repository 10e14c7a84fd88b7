#include "cuda/host_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "cuda/mutation.h"
#include "cuda/placement.h"
#include "cuda/streams.h"

namespace torchwire::cuda {
namespace {

bool isOnDevice(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_cpu();
}

/// Without the elements that an expanded tensor only repeats: the gradient of sum(), for one.
at::Tensor withoutRepeated(at::Tensor tensor) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) {
      tensor = tensor.narrow(d, 0, 1);
    }
  }
  return tensor;
}

/// In memory that the device can write to by itself. Undefined without any left.
at::Tensor pinnedLike(const at::Tensor& tensor) {
  try {
    return at::empty_like(
        tensor, tensor.options().device(at::kCPU).requires_grad(false).pinned_memory(true));
  } catch (const c10::Error&) {
    return {};
  }
}

/// Not waited for. Undefined where it would have to be.
at::Tensor beginCopyToHost(const at::Tensor& source) {
  // What is to be conjugated or negated is so on the device: on the host, it would be before it has come
  // (pytorch/pytorch#146286).
  const at::Tensor needed = withoutRepeated(source).resolve_conj().resolve_neg();
  const at::Tensor copy = pinnedLike(needed);
  if (!copy.defined()) {
    return {};
  }
  copy.copy_(needed, /* non_blocking */ true);
  keepForCurrentStream(needed); // where the copies are given up before they have been made
  return copy.expand(source.sizes()).set_requires_grad(source.requires_grad());
}

} // namespace

bool HostCopies::areNeeded(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), isOnDevice);
}

HostCopies::HostCopies(std::vector<at::Tensor> tensors) : sources_(std::move(tensors)) {
  const at::NoGradGuard noGrad;
  for (at::Tensor& source : sources_) {
    if (!isOnDevice(source)) {
      copies_.push_back(source);
      continue;
    }
    copies_.push_back(hasOneMemory(source) ? beginCopyToHost(source) : at::Tensor());
    if (!copies_.back().defined()) { // wait() copies, by when the program may have changed it
      source = source.clone().set_requires_grad(source.requires_grad());
    }
  }
  streams_ = currentStreams(acceleratorsOf(sources_));
  for (const c10::Stream stream : streams_) {
    copied_.emplace_back(stream.device_type());
    copied_.back().record(stream);
  }
}

void HostCopies::wait() {
  const at::NoGradGuard noGrad;
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (isOnDevice(sources_[i]) && !copies_[i].defined()) {
      const c10::MultiStreamGuard current(streams_); // those that fill it
      copies_[i] = sources_[i].to(at::kCPU).set_requires_grad(sources_[i].requires_grad());
    }
  }
  for (const c10::Event& copied : copied_) {
    TORCHWIRE_SYNCHRONIZE(hostWaitsForCopies, copied.synchronize());
  }
  sources_.clear();
}

std::vector<at::Tensor> HostCopies::finish() {
  wait();
  return std::move(copies_);
}

} // namespace torchwire::cuda
