// Where the tensors of a message are to go.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace torchwire {

/// For each tensor of a message the device of the receiver that it is for. Empty: all are for the CPU.
using TensorDevices = std::vector<c10::Device>;

struct TensorTargets {
  TensorDevices devices;
  // Which of the tensors are tickets: they do not hold the elements, but say where the receiver finds them
  // (cuda/transfer/tensor_ticket.h). One for each tensor; empty: none is.
  std::vector<bool> tickets;

  bool isTicket(size_t tensor) const {
    return !tickets.empty() && tickets[tensor];
  }
};

} // namespace torchwire
