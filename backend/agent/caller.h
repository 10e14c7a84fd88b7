// Calls of this worker, from the message to what comes of it.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "autograd/direct_forward.h"
#include "autograd/torch_engine.h"
#include "backend/agent/agent_parts.h"
#include "backend/agent/bookkeeping.h"
#include "backend/agent/creations.h"
#include "backend/base/error.h"
#include "backend/base/thread_pool.h"
#include "backend/call/call_table.h"
#include "backend/node/request_sender.h"
#include "backend/serve/direct_rref.h"
#include "backend/wire/frame.h"
#include "backend/wire/undo.h"
#include "cuda/transfer/transfers.h"

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
    return creations_.find(future);
  }

  /// A call of which torchwire knows what becomes of its response. Neither a creation nor a message of the books.
  struct KnownCall {
    const WorkerInfo& to;
    c10::intrusive_ptr<Message> request;
    float rpcTimeoutSeconds; // kUnsetRpcTimeout: as the default says
    JoinsContext joins;
  };
  /// Makes the value of a future of a response. Runs where the call ends, on a thread that may block.
  using ReadResult = at::IValue (*)(c10::intrusive_ptr<Message> response);
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
  void waitForWaiters();
  /// Throws CallError unless the worker can send.
  void expectRunning(const WorkerInfo& to, const Message& message) const;
  /// A future of a value that is perhaps on the worker's devices.
  c10::intrusive_ptr<JitFuture> futureOf(at::TypePtr type) const;

 private:
  /// What is to be known of a call when it is over.
  struct Target {
    WorkerId to;
    std::optional<ContextId> context; // an autograd one, that the call is part of
    bool isDirect = false; // and its answer nothing that libtorch could read
  };
  /// A call that ends with its future.
  struct OwnCall : Target {
    bool mayCreate = false; // an RRef
    bool creates = false; // for certain
    std::shared_ptr<Pass> pass; // that has to wait for the answer; null: none
    c10::intrusive_ptr<JitFuture> future;
    ThreadPool* pool = nullptr; // where it ends, unless a thread waits for it
    ReadResult read = nullptr; // null: the response itself is the future's value
    std::shared_ptr<KeptRRefs> kept; // null: none
    std::shared_ptr<const at::ThreadLocalState> state; // in which the future completes; null: fresh
  };
  /// A request as PyTorch has it.
  struct Request {
    WorkerId to;
    c10::intrusive_ptr<Message> message;
    TensorDevices targets;
    std::chrono::milliseconds timeout;
  };
  struct EncodedRequest {
    OutgoingFrame frame;
    bool counted = false; // as being under way, see RequestSender
    std::optional<cuda::OutgoingTensors> tensors; // that have come from devices
  };

  // caller.cpp: from the message to the frame.
  Request requestTo(
      const WorkerInfo& to, c10::intrusive_ptr<Message> message, float rpcTimeoutSeconds,
      const torch::distributed::rpc::DeviceMap& given = {});
  std::chrono::milliseconds timeoutOf(float seconds) const;
  std::optional<ContextId> join(JoinsContext joins, Request& request) const;
  RequestSender::Begun start(OwnCall call, Request request);
  RequestSender::Begun startSending(OwnCall call, Request request);
  CallTable::Options optionsOf(const Request& request, bool counted, const Undo& undo) const;
  CallTable::Completion beginning(OwnCall call);
  RequestSender::Begun begin(
      WorkerId to, CallTable::Options options, EncodedRequest request,
      CallTable::Completion completion);
  std::optional<cuda::OutgoingTensors> beginTensors(Request& request);
  EncodedRequest encode(
      Request request, std::optional<cuda::OutgoingTensors> tensors, const Undo& undo);
  uint64_t startWhenCopied(
      OwnCall call, Request request, cuda::OutgoingTensors tensors, const Undo& undo);
  void sendWhenCopied(
      uint64_t callId, Request request, cuda::OutgoingTensors tensors, bool counted,
      const Undo& undo);
  std::string cannotCopy(const std::exception& ofDevice) const;

  // caller_waits.cpp: on the thread that calls, and perhaps waits.
  Error objectionTo(WorkerId to, const Message& request) const;
  EncodedRequest encodeInTime(const WorkerInfo& to, Request request);
  Outcome outcomeOf(WorkerId to, CallTable::Options options, EncodedRequest request);
  Task awaitEnd(Waiter& waiter, uint64_t callId);
  void tellCancelled(WorkerId to, uint64_t callId);

  // caller_ends.cpp: what becomes of an answer.
  void complete(OwnCall call, Outcome outcome);
  void finishCall(const OwnCall& call, Outcome outcome);
  void setFuture(const OwnCall& call, Outcome outcome);
  c10::intrusive_ptr<Message> placed(WorkerId from, DecodedMessage decoded) const;
  Error unanswered(const Target& call, const Error& error);
  void failUnseen(OwnCall call, uint64_t callId, const Error& error);
  void finish(OwnCall& call);
  void callEnded(const Target& call) noexcept;

  AgentParts& parts_;
  Bookkeeping& bookkeeping_;
  Creations creations_;
  std::atomic<int> endingOnWaiters_{0}; // calls that threads which wait for them are about to end
};

} // namespace torchwire
