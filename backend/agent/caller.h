// Calls of this worker, from the message to what comes of it.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "autograd/direct_forward.h"
#include "backend/agent/agent_parts.h"
#include "backend/agent/bookkeeping.h"
#include "backend/agent/call_completer.h"
#include "backend/agent/own_call.h"
#include "backend/agent/request_encoder.h"
#include "backend/agent/waiter_ends.h"
#include "backend/base/error.h"
#include "backend/base/task.h"
#include "backend/call/call_table.h"
#include "backend/call/waiter.h"
#include "backend/node/request_sender.h"
#include "backend/serve/direct_rref.h"
#include "backend/wire/undo.h"

namespace torchwire {

/// Makes them. Thread-safe.
class Caller {
 public:
  using Message = torch::distributed::rpc::Message;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;

  Caller(AgentParts& parts, Bookkeeping& bookkeeping);
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  /// As RpcAgent::send(), for all but Bookkeeping's requests.
  c10::intrusive_ptr<JitFuture> send(
      const WorkerInfo& to, c10::intrusive_ptr<Message> message, float rpcTimeoutSeconds,
      const torch::distributed::rpc::DeviceMap& deviceMap);

  /// The call that completes the future of an RRef's creation; nullopt where that has ended.
  std::optional<uint64_t> creationOf(const JitFuture& future) const {
    return completer_.creations().find(future);
  }

  /// A call of which torchwire knows what becomes of its response. Neither a creation nor a message of the books.
  struct KnownCall {
    const WorkerInfo& to;
    c10::intrusive_ptr<Message> request;
    float rpcTimeoutSeconds; // kUnsetRpcTimeout: as the default says
    JoinsContext joins;
  };
  struct Result {
    ReadResult read;
    at::TypePtr type; // of the future
    std::shared_ptr<KeptRRefs> kept; // until the call is over; null: none
  };
  struct Sent {
    c10::intrusive_ptr<JitFuture> future;
    uint64_t callId;
  };
  /// The future holds what `result.read` makes of the response, or throws. It completes in the calling thread's
  /// at::ThreadLocalState, as futures of libtorch's calls do.
  Sent send(KnownCall call, Result result);

  /// Sends a call, waits for its response on the calling thread, as await(), and calls `use` with it there. No future is
  /// made. Throws std::runtime_error with the text that the future would have, and what `use` throws.
  void call(KnownCall call, const std::function<void(c10::intrusive_ptr<Message> response)>& use);

  /// Waits on the calling thread, which holds neither libtorch's locks nor the GIL, for a call, and ends it here:
  /// completes its future and runs that future's callbacks; elsewhere where `hasCallbacks` finds, at that moment, some of the
  /// user's, which could wait for this thread. Returns at once if the call has ended, or ends just now elsewhere.
  /// A call is cancelled if a handler of a signal raises meanwhile; as in call(), whoever waits then calls
  /// raisePendingSignal().
  void await(uint64_t callId, const std::function<bool()>& hasCallbacks);

  /// Gives a call up: it fails with ErrorCode::cancelled, as a rule before this returns, and its callee is told. False if
  /// there is no such call (any more). The thread holds neither libtorch's locks nor the GIL.
  bool cancel(uint64_t callId);

  /// Returns when no thread ends a call that it has waited for, but for this one.
  void waitForWaiters() const {
    waiterEnds_.waitForOthers();
  }
  /// Throws CallError unless the worker can send.
  void expectRunning(const WorkerInfo& to, const Message& message) const;
  /// A future of a value that is perhaps on the worker's devices.
  c10::intrusive_ptr<JitFuture> futureOf(at::TypePtr type) const;

 private:
  // caller.cpp: from the message to the link.
  RequestSender::Begun start(OwnCall call, CallRequest request);
  RequestSender::Begun startSending(OwnCall call, CallRequest request);
  RequestSender::Begun begin(
      WorkerId to, CallTable::Options options, EncodedRequest request,
      CallTable::Completion completion);
  uint64_t startWhenCopied(
      OwnCall call, CallRequest request, cuda::OutgoingTensors tensors, const Undo& undo);
  void sendWhenCopied(
      uint64_t callId, CallRequest request, cuda::OutgoingTensors tensors, bool counted,
      const Undo& undo);

  // caller_waits.cpp: on the thread that calls, and perhaps waits.
  Error objectionTo(WorkerId to, const Message& request) const;
  EncodedRequest encodeInTime(const WorkerInfo& to, CallRequest request);
  Outcome outcomeOf(WorkerId to, CallTable::Options options, EncodedRequest request);
  Task awaitEnd(Waiter& waiter, uint64_t callId);
  void tellCancelled(WorkerId to, uint64_t callId);

  AgentParts& parts_;
  Bookkeeping& bookkeeping_;
  const RequestEncoder encoder_;
  WaiterEnds waiterEnds_;
  CallCompleter completer_;
};

} // namespace torchwire
