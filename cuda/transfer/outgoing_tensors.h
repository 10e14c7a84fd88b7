// The tensors of one message, on their way from devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backend/codec/tensor_targets.h"
#include "cuda/host_copies.h"

namespace torchwire::cuda {

/// What Transfers has begun for a message: some tensors have become tickets, the others are being copied to the host. If the
/// message is not sent, what the tickets stand for is taken back. Movable; not thread-safe.
class OutgoingTensors {
 public:
  /// Takes back what a message's tickets stand for.
  using TakeBack = std::function<void()>;

  /// `tensors`: the tickets, and those that are still to be copied. `takeBack` is null if there are no tickets.
  OutgoingTensors(std::vector<at::Tensor> tensors, TensorTargets targets, TakeBack takeBack);
  ~OutgoingTensors();
  OutgoingTensors(OutgoingTensors&& other) noexcept;
  OutgoingTensors& operator=(OutgoingTensors&&) = delete;

  /// Whether take() waits for a device.
  bool mustWait() const {
    return mustWait_;
  }
  bool hasTickets() const {
    return takeBack_ != nullptr;
  }
  const TensorTargets& targets() const {
    return targets_;
  }

  /// Waits until the tensors can travel. Throws c10::Error if a device has failed.
  void wait() {
    copies_->wait();
  }
  /// The tensors as they travel; waits.
  std::vector<at::Tensor> take() {
    return copies_->finish();
  }

  /// The message is on its way: from now on the receiver says when the tickets have been used.
  void sent() {
    takeBack_ = nullptr;
  }

 private:
  bool mustWait_;
  TensorTargets targets_;
  TakeBack takeBack_;
  std::optional<HostCopies> copies_;
};

} // namespace torchwire::cuda
