// Requests of calls, from PyTorch's message to the frame.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "autograd/direct_forward.h"
#include "backend/agent/agent_parts.h"
#include "backend/agent/bookkeeping.h"
#include "backend/call/call_table.h"
#include "backend/serve/call_deadline.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"
#include "backend/wire/undo.h"
#include "cuda/transfer/transfers.h"

namespace torchwire {

/// A request as PyTorch has it.
struct CallRequest {
  WorkerId to;
  c10::intrusive_ptr<torch::distributed::rpc::Message> message;
  TensorDevices targets;
  std::chrono::milliseconds timeout; // 0: none
  std::optional<CallDeadline::TimePoint> deadline; // of the thread that makes the call
};

struct EncodedRequest {
  OutgoingFrame frame;
  bool counted = false; // see isCounted()
  std::optional<cuda::OutgoingTensors> tensors; // that have come from devices
};

/// Thread-safe.
class RequestEncoder {
 public:
  RequestEncoder(AgentParts& parts, Bookkeeping& bookkeeping)
      : parts_(parts), bookkeeping_(bookkeeping) {}

  /// `given`: leads tensors to the worker's devices; empty: the group's map does. Throws c10::Error for a tensor on a device
  /// that no map leads on from.
  CallRequest requestTo(
      const torch::distributed::rpc::WorkerInfo& to,
      c10::intrusive_ptr<torch::distributed::rpc::Message> message, float rpcTimeoutSeconds,
      const torch::distributed::rpc::DeviceMap& given = {}) const;
  /// Makes it part of the calling thread's autograd context, and returns that; nullopt: of none. Throws where that has been
  /// released.
  std::optional<ContextId> join(JoinsContext joins, CallRequest& request) const;
  /// Of a request that has not been encoded yet.
  CallTable::Options optionsOf(const CallRequest& request, bool counted, const Undo& undo) const;
  /// Nullopt where all tensors are on the host.
  std::optional<cuda::OutgoingTensors> beginTensors(CallRequest& request) const;
  /// Whether the request counts as being under way, see RequestSender, once its tensors have come from their devices.
  bool isCounted(const CallRequest& request, const cuda::OutgoingTensors& tensors) const;
  /// Waits for the tensors. Throws std::runtime_error if a device has failed.
  EncodedRequest encode(
      CallRequest request, std::optional<cuda::OutgoingTensors> tensors, const Undo& undo) const;
  /// The sentence for that.
  std::string cannotCopy(const std::exception& ofDevice) const;

 private:
  std::chrono::milliseconds timeoutOf(float seconds) const;
  bool isCounted(const cuda::OutgoingTensors* tensors, size_t bytes) const;

  AgentParts& parts_;
  Bookkeeping& bookkeeping_;
};

} // namespace torchwire
