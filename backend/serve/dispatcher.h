// What requests do: the request callback of the agent.
#pragma once

#include <torch/csrc/distributed/rpc/request_callback_impl.h>

#include <functional>
#include <unordered_map>
#include <utility>

#include "backend/base/task.h"
#include "backend/serve/script_call_reader.h"
#include "backend/wire/roster.h"
#include "backend/wire/undo.h"
#include "cuda/streams.h"

namespace torchwire {

/// Whether a request only keeps the books of RRefs and autograd. Such a request must not wait for a thread
/// behind functions of the user's that block until it has been served.
bool isControl(uint32_t messageType);

/// Serves each request by the handler that is registered for its type, as libtorch's RequestCallbackImpl
/// does by a switch. Calls of functions, profiled or not, are its own; the other types are registered by the
/// modules that handle them. A request that wraps another comes back here with what it wraps.
/// Thread-safe, except that all handlers are registered before the first request.
class Dispatcher final : public torch::distributed::rpc::RequestCallbackImpl {
 public:
  using Message = torch::distributed::rpc::Message;
  using MessageType = torch::distributed::rpc::MessageType;
  using JitFuture = torch::distributed::rpc::JitFuture;
  using RpcCommandBase = torch::distributed::rpc::RpcCommandBase;
  using ScriptCall = torch::distributed::rpc::ScriptCall;

  /// Serves a request that libtorch can read, and returns the future of the response message. The command
  /// lives until the handler returns.
  using Handler =
      std::function<c10::intrusive_ptr<JitFuture>(WorkerId caller, RpcCommandBase& command)>;
  /// Serves a request that only torchwire can read (own_messages.h).
  using OwnHandler =
      std::function<c10::intrusive_ptr<JitFuture>(WorkerId caller, Message& request)>;

  Dispatcher();

  /// Replaces the handler of a type, if there is one.
  void handle(MessageType type, Handler handler);
  void handleOwn(MessageType type, OwnHandler handler);
  /// Serves calls that libtorch cannot read (direct_call.h), and throws what fails them.
  using DirectCallHandler = std::function<c10::intrusive_ptr<JitFuture>(Message& request)>;
  void handleDirectCalls(DirectCallHandler handler) {
    directCalls_ = std::move(handler);
  }
  /// Serves direct calls that are part of an autograd context, by runDirectCall(); returns null for other requests. Is
  /// asked about each FORWARD_AUTOGRAD_REQ.
  void handleDirectForwards(OwnHandler handler) {
    directForwards_ = std::move(handler);
  }
  /// Serves a request to create an RRef whose function or arguments cannot be had: the RRef gets the error for its value,
  /// as it gets what its function raises. Returns null for other requests.
  using FailedCreationHandler = std::function<c10::intrusive_ptr<JitFuture>(
      WorkerId caller, const Message& request, const std::exception_ptr& error)>;
  void handleFailedCreations(FailedCreationHandler handler) {
    failedCreations_ = std::move(handler);
  }

  /// Called when libtorch has made an OwnerRRef for an RRef in a request's arguments; sometimes also when it has not
  /// (owner_watch.h).
  void whenOwnerUnpickled(std::function<void()> callback) {
    ownerUnpickled_ = std::move(callback);
  }

  /// Called with each answer before it goes to its caller. On any thread, also with libtorch's locks held.
  void whenAnswering(std::function<Undo(WorkerId caller, const Message& answer)> callback) {
    answering_ = std::move(callback);
  }
  Undo answering(WorkerId caller, const Message& answer) const {
    return answering_(caller, answer);
  }

  /// Runs a task on a thread on which functions of the user's may block. False: it cannot, and the task stays the
  /// caller's.
  using RunFunctions = std::function<bool(Task&&)>;
  /// Where a function goes on that has had to wait until the RRefs in its arguments were known to their owners.
  /// Before: on the thread that has heard of the last, which completes calls.
  void runFunctionsOn(RunFunctions run) {
    runFunctions_ = std::move(run);
  }

  /// Of requests, and the default streams of devices.
  void orderStreams(cuda::StreamOrder order) {
    streamOrder_ = order;
  }
  cuda::StreamOrder streamOrder() const {
    return streamOrder_;
  }

  /// Serves a request that `caller` has sent, once the RRefs in its arguments are known to their owners.
  /// The future holds a response message, or why there is none. Does not throw.
  c10::intrusive_ptr<JitFuture> process(WorkerId caller, Message& request) const;

  /// Answers a request to create an RRef that cannot be served: its function cannot be imported, say, or there is no memory
  /// for its tensors. The future is as of process(). Null for other requests, and for one that does not even say which RRef
  /// it creates. Does not throw.
  c10::intrusive_ptr<JitFuture> failCreation(
      WorkerId caller, const Message& request, const std::exception_ptr& error) const;

  /// Serves a command that came inside another, on this thread and at once. Throws what its handler throws.
  c10::intrusive_ptr<JitFuture> run(
      WorkerId caller, RpcCommandBase& command, MessageType type) const;

  /// Serves a direct call. Does not throw.
  c10::intrusive_ptr<JitFuture> runDirectCall(Message& request) const;

  /// The future of what a builtin operator or a TorchScript function returns.
  c10::intrusive_ptr<JitFuture> runScript(ScriptCall& call) const;

  /// As process(), from a caller that is not known. The agent does not use it.
  c10::intrusive_ptr<JitFuture> processMessage(
      Message& request, std::vector<c10::Stream> streams) const override;

 private:
  // libtorch's own handlers of RRef messages, which nothing may reach: these fail the request, and
  // test_handlers.py looks for the others among the symbols that the extension uses.
  c10::intrusive_ptr<JitFuture> processScriptRemoteCall(
      RpcCommandBase& rpc, const std::vector<c10::Stream>& streams) const override;
  c10::intrusive_ptr<JitFuture> processPythonRemoteCall(
      RpcCommandBase& rpc, const std::vector<c10::Stream>& streams) const override;
  c10::intrusive_ptr<JitFuture> processPythonRRefFetchCall(RpcCommandBase& rpc) const override;
  void handleRRefDelete(c10::intrusive_ptr<torch::distributed::rpc::RRef>& rref) const override;
  c10::intrusive_ptr<JitFuture> processRpcWithErrors(
      RpcCommandBase& rpc, const MessageType& messageType,
      const std::vector<c10::Stream>& streams) const override;

  c10::intrusive_ptr<JitFuture> deserializeAndRun(WorkerId caller, Message& request) const;
  c10::intrusive_ptr<JitFuture> runOnceConfirmed(
      JitFuture& confirmed, WorkerId caller, std::shared_ptr<RpcCommandBase> command,
      MessageType type) const;
  c10::intrusive_ptr<JitFuture> runProfiledByServer(
      WorkerId caller, RpcCommandBase& command, MessageType type) const;
  c10::intrusive_ptr<JitFuture> runCatching(
      WorkerId caller, RpcCommandBase& command, MessageType type) const;
  c10::intrusive_ptr<JitFuture> unreadable(const std::exception& error, MessageType type) const;
  c10::intrusive_ptr<JitFuture> failure(const std::exception& error, MessageType type) const;
  void handleFunctions();
  void refuseLibtorchsGradients();

  std::shared_ptr<RpcCommandBase> read(const Message& request) const;

  std::unordered_map<uint32_t, Handler> handlers_;
  std::unordered_map<uint32_t, OwnHandler> ownHandlers_;
  DirectCallHandler directCalls_;
  OwnHandler directForwards_;
  FailedCreationHandler failedCreations_;
  std::function<void()> ownerUnpickled_ = [] {};
  std::function<Undo(WorkerId, const Message&)> answering_ = [](WorkerId, const Message&) {
    return Undo();
  };
  RunFunctions runFunctions_ = [](Task&&) { return false; };
  cuda::StreamOrder streamOrder_ = cuda::StreamOrder::none;
  mutable ScriptCallReader scriptCalls_;
};

} // namespace torchwire
