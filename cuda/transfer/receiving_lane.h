// The end of a lane that receives.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>

#include "cuda/transfer/lane_end.h"
#include "cuda/transfer/tensor_ticket.h"

namespace torchwire::cuda {

/// Has its device receive into new memory, on the lane's stream. In which order is for this end to say, and the other one
/// follows. So a receive waits only for what was begun before it, and no two workers' lanes wait for each other. Thread-safe.
class ReceivingLane final : public LaneEnd {
 public:
  using LaneEnd::LaneEnd;

  /// A receive that has begun.
  struct Receipt {
    at::Tensor tensor;
    c10::Event arrived;
    uint64_t sequence = 0; // its place among the lane's; 0: the trial's
  };
  /// The sender is to be told of it. Throws c10::Error without memory, or std::runtime_error after which the lane has failed.
  Receipt receive(const TensorTicket& ticket, c10::Device to) EXCLUDES(mutex_);
  /// The same for so many bytes of the lane's trial, which its sender sends unasked: NCCL connects the two ends when both have
  /// begun their first transfer. Waits for that.
  Receipt receiveFirst(size_t bytes, c10::Device to) EXCLUDES(mutex_);

  /// Waits until the elements have come: a stream that waited for them could not be told that they never will, and who
  /// uses them would take whatever is there for what was sent. Throws std::runtime_error if the lane has failed.
  void await(const Receipt& receipt);

 private:
  Receipt begin(at::Tensor tensor, bool isAskedFor) EXCLUDES(mutex_);

  uint64_t last_ GUARDED_BY(mutex_) = 0;
};

} // namespace torchwire::cuda
