#include "cuda/transfer/outgoing_tensors.h"

#include <utility>

#include "backend/base/guarded.h"

namespace torchwire::cuda {

OutgoingTensors::OutgoingTensors(
    std::vector<at::Tensor> tensors, TensorTargets targets, TakeBack takeBack)
    : mustWait_(HostCopies::areNeeded(tensors)),
      targets_(std::move(targets)),
      takeBack_(std::move(takeBack)) {
  try {
    copies_.emplace(std::move(tensors));
  } catch (...) {
    if (takeBack_) {
      guarded("taking tickets for tensors back", takeBack_);
    }
    throw;
  }
}

OutgoingTensors::~OutgoingTensors() {
  if (takeBack_) {
    guarded("taking tickets for tensors back", takeBack_);
  }
}

OutgoingTensors::OutgoingTensors(OutgoingTensors&& other) noexcept
    : mustWait_(other.mustWait_),
      targets_(std::move(other.targets_)),
      takeBack_(std::exchange(other.takeBack_, nullptr)),
      copies_(std::move(other.copies_)) {}

} // namespace torchwire::cuda
