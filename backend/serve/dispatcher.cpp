#include "backend/serve/dispatcher.h"

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/profiler/server_process_global_profiler.h>
#include <torch/csrc/distributed/rpc/python_resp.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/distributed/rpc/unpickled_python_call.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "backend/base/log.h"
#include "backend/serve/current_call.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/owner_watch.h"
#include "backend/serve/pending_rrefs.h"
#include "backend/serve/python_value.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;
namespace processglobal = rpc::profiler::processglobal;
using rpc::JitFuture;
using rpc::Message;
using rpc::MessageType;
using rpc::RpcCommandBase;

constexpr WorkerId kUnknownCaller = static_cast<WorkerId>(-1);

/// This worker's devices that calls use.
std::vector<c10::Device> usedDevices() {
  return rpc::RpcAgent::isCurrentRpcAgentSet() ? rpc::RpcAgent::getCurrentRpcAgent()->getDevices()
                                               : std::vector<c10::Device>();
}

bool runsFunction(MessageType type) {
  return type == MessageType::PYTHON_CALL || type == MessageType::SCRIPT_CALL;
}

/// Throws if the caller has given up the call that this thread serves: its function need not begin. RRefs in its arguments
/// have been told of by now.
void expectNotCancelled() {
  if (ServingScope::isCancelled()) {
    throw std::runtime_error("the call was cancelled before it began to run");
  }
}

c10::intrusive_ptr<JitFuture> pythonResponse(JitFuture& returned) {
  return returned.then(
      [](JitFuture& result) {
        return withDeviceStorages(rpc::PythonResp(serializePython(result.value())).toMessage());
      },
      messageType());
}

/// What `run`, which does not throw, returns. rpc._server_process_global_profile() profiles all requests of a process,
/// whoever sends them.
template <typename Run>
c10::intrusive_ptr<JitFuture> profiledByServer(Run run) {
  const auto profiling = processglobal::StateStackEntry::current();
  if (!profiling) {
    return run();
  }
  torch::autograd::profiler::enableProfilerLegacy(profiling->statePtr()->config());
  auto result = run();
  processglobal::pushResultRecursive(profiling, torch::autograd::profiler::disableProfilerLegacy());
  return result;
}

} // namespace

bool isControl(uint32_t messageType) {
  switch (static_cast<int>(messageType)) {
    case MessageType::SCRIPT_RREF_FETCH_CALL:
    case MessageType::PYTHON_RREF_FETCH_CALL: // waits for the value as a future, without a thread
    case MessageType::RREF_USER_DELETE:
    case MessageType::RREF_FORK_REQUEST:
    case MessageType::RREF_CHILD_ACCEPT:
    case MessageType::BACKWARD_AUTOGRAD_REQ:
    case MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ:
      return true;
    default:
      return own_messages::isOwnRequest(messageType);
  }
}

Dispatcher::Dispatcher() {
  handleFunctions();
  refuseLibtorchsGradients();
}

void Dispatcher::handle(MessageType type, Handler handler) {
  handlers_[static_cast<uint32_t>(type)] = std::move(handler);
}

void Dispatcher::handleOwn(MessageType type, OwnHandler handler) {
  ownHandlers_[static_cast<uint32_t>(type)] = std::move(handler);
}

// ---- the way of a request -----------------------------------------------------------------------

c10::intrusive_ptr<JitFuture> Dispatcher::process(WorkerId caller, Message& request) const {
  try {
    const auto own = ownHandlers_.find(static_cast<uint32_t>(request.type()));
    if (own != ownHandlers_.end()) {
      return own->second(caller, request);
    }
    if (directCalls_ && own_messages::isDirectCall(request)) {
      return runDirectCall(request);
    }
    if (directForwards_ && request.type() == MessageType::FORWARD_AUTOGRAD_REQ) {
      if (auto response = directForwards_(caller, request)) {
        return response;
      }
    }
    return deserializeAndRun(caller, request);
  } catch (const std::exception& e) { // it cannot be read
    auto failed = failCreation(caller, request, std::current_exception());
    return failed ? failed : unreadable(e, request.type());
  }
}

c10::intrusive_ptr<JitFuture> Dispatcher::failCreation(
    WorkerId caller, const Message& request, const std::exception_ptr& error) const {
  try {
    return failedCreations_ ? failedCreations_(caller, request, error) : nullptr;
  } catch (const std::exception&) { // which RRef it is cannot be read
    return nullptr;
  }
}

c10::intrusive_ptr<JitFuture> Dispatcher::processMessage(
    Message& request, std::vector<c10::Stream> /* streams */) const {
  return process(kUnknownCaller, request);
}

c10::intrusive_ptr<JitFuture> Dispatcher::deserializeAndRun(
    WorkerId caller, Message& request) const {
  const MessageType type = request.type();
  std::shared_ptr<RpcCommandBase> command;
  c10::intrusive_ptr<JitFuture> confirmed;
  {
    PendingRRefs pending;
    const OwnerWatch owners;
    command = read(request);
    if (owners.sawOwner()) {
      ownerUnpickled_();
    }
    confirmed = pending.confirmed();
  }
  if (confirmed->completed()) { // as nearly always
    return runProfiledByServer(caller, *command, type);
  }
  return runOnceConfirmed(*confirmed, caller, std::move(command), type);
}

std::shared_ptr<RpcCommandBase> Dispatcher::read(const Message& request) const {
  if (request.type() == MessageType::SCRIPT_CALL) {
    return scriptCalls_.read(request);
  }
  return deserializePythonRpcCommand(rpc::deserializeRequest(request), request.type());
}

// Not on the thread that confirms: that completes calls, and the function may wait for one.
c10::intrusive_ptr<JitFuture> Dispatcher::runOnceConfirmed(
    JitFuture& confirmed, WorkerId caller, std::shared_ptr<RpcCommandBase> command,
    MessageType type) const {
  const auto devices = usedDevices();
  auto response = c10::make_intrusive<JitFuture>(messageType(), devices);
  const auto filling = cuda::currentStreams(devices); // the arguments
  confirmed.addCallback([this, caller, command = std::move(command), type, response, filling,
                         served = ServingScope::current()](JitFuture&) {
    Task rest([this, caller, command, type, response, filling, served] {
      const ServingScope serving(served.request(), served.arrival(), served.cancelledCalls());
      const at::ThreadLocalStateGuard restoredAfterwards{
          at::ThreadLocalState()}; // as in Server::run
      try {
        cuda::RequestStreams streams(filling, streamOrder_);
        const auto result = runProfiledByServer(caller, *command, type);
        streams.end();
        result->addCallback([response](JitFuture& done) {
          if (done.hasError()) {
            response->setError(done.exception_ptr());
          } else {
            complete(*response, done.value().toCustomClass<Message>());
          }
        });
      } catch (const std::exception&) { // of the profiler's, or of a device
        response->setErrorIfNeeded(std::current_exception());
      }
    });
    if (!runFunctions_(std::move(rest))) {
      rest(); // the agent shuts down: the answer is dropped, but the function has been promised a run
    }
  });
  return response;
}

c10::intrusive_ptr<JitFuture> Dispatcher::runProfiledByServer(
    WorkerId caller, RpcCommandBase& command, MessageType type) const {
  return profiledByServer([&] { return runCatching(caller, command, type); });
}

// No RRef can be in it for which it would have to wait.
c10::intrusive_ptr<JitFuture> Dispatcher::runDirectCall(Message& request) const {
  return profiledByServer([&]() -> c10::intrusive_ptr<JitFuture> {
    try {
      expectNotCancelled();
      return directCalls_(request);
    } catch (const std::exception& e) {
      return unreadable(e, request.type());
    }
  });
}

c10::intrusive_ptr<JitFuture> Dispatcher::runCatching(
    WorkerId caller, RpcCommandBase& command, MessageType type) const {
  try {
    if (runsFunction(type)) {
      expectNotCancelled();
    }
    return run(caller, command, type);
  } catch (const std::exception& e) {
    return failure(e, type);
  }
}

c10::intrusive_ptr<JitFuture> Dispatcher::run(
    WorkerId caller, RpcCommandBase& command, MessageType type) const {
  const auto handler = handlers_.find(static_cast<uint32_t>(type));
  TORCH_INTERNAL_ASSERT(
      handler != handlers_.end(), "Request type ", static_cast<int>(type), " not supported.");
  return handler->second(caller, command);
}

// What Python raises while it reads a call keeps its type, as if the function had raised it.
c10::intrusive_ptr<JitFuture> Dispatcher::unreadable(
    const std::exception& error, MessageType type) const {
  const bool isPythons = dynamic_cast<const py::error_already_set*>(&error) != nullptr;
  return isPythons && type == MessageType::PYTHON_CALL
      ? pythonResponse(*raised(std::current_exception(), messageType()))
      : failure(error, type);
}

// Not as a failed future: callers expect "Error on Node". Not by libtorch's handleError, which writes the error, with all
// frames that a c10::Error knows, to this process's standard error as well. A Python exception (py::error_already_set)
// takes the GIL by itself to be read and to end.
c10::intrusive_ptr<JitFuture> Dispatcher::failure(
    const std::exception& error, MessageType type) const {
  ServingScope::countError();
  const std::string text = error.what();
  log(LogLevel::info,
      "a request of type " + std::to_string(static_cast<int>(type)) +
          " failed: " + text.substr(0, text.find('\n')));
  const auto node =
      torch::distributed::autograd::DistAutogradContainer::getInstance().getWorkerId();
  return completed(
      rpc::createExceptionResponse(
          "Error on Node " + std::to_string(node) + ": " + text,
          /* messageId, which the server sets */ -1));
}

// ---- functions ----------------------------------------------------------------------------------

c10::intrusive_ptr<JitFuture> Dispatcher::runScript(ScriptCall& call) const {
  return call.hasOp()
      ? runJitOperator(*call.op(), call.stackRef(), {})
      : runJitFunction(call.qualifiedName(), call.stackRef(), {}, call.isAsyncExecution());
}

void Dispatcher::handleFunctions() {
  handle(MessageType::SCRIPT_CALL, [this](WorkerId, RpcCommandBase& command) {
    return runScript(static_cast<ScriptCall&>(command))
        ->then(
            [](JitFuture& result) {
              return withDeviceStorages(rpc::ScriptResp(result.value()).toMessage());
            },
            messageType());
  });
  handle(MessageType::PYTHON_CALL, [this](WorkerId, RpcCommandBase& command) {
    auto& call = static_cast<rpc::UnpickledPythonCall&>(command);
    return pythonResponse(*runPython(*this, call.pythonUdf(), call.isAsyncExecution()));
  });
}

// ---- libtorch's handlers ------------------------------------------------------------------------

namespace {
[[noreturn]] void refuse(const char* handler) {
  TORCH_INTERNAL_ASSERT(
      false, "libtorch's handler ", handler, " was called; torchwire has its own");
}
} // namespace

c10::intrusive_ptr<JitFuture> Dispatcher::processScriptRemoteCall(
    RpcCommandBase&, const std::vector<c10::Stream>&) const {
  refuse("processScriptRemoteCall");
}

c10::intrusive_ptr<JitFuture> Dispatcher::processPythonRemoteCall(
    RpcCommandBase&, const std::vector<c10::Stream>&) const {
  refuse("processPythonRemoteCall");
}

c10::intrusive_ptr<JitFuture> Dispatcher::processPythonRRefFetchCall(RpcCommandBase&) const {
  refuse("processPythonRRefFetchCall");
}

void Dispatcher::handleRRefDelete(c10::intrusive_ptr<rpc::RRef>&) const {
  refuse("handleRRefDelete");
}

c10::intrusive_ptr<JitFuture> Dispatcher::processRpcWithErrors(
    RpcCommandBase&, const MessageType&, const std::vector<c10::Stream>&) const {
  refuse("processRpcWithErrors");
}

// torchwire's recv functions send another request (own_messages.h).
void Dispatcher::refuseLibtorchsGradients() {
  handle(
      MessageType::BACKWARD_AUTOGRAD_REQ,
      [](WorkerId, RpcCommandBase&) -> c10::intrusive_ptr<JitFuture> {
        throw std::runtime_error(
            "gradients of a backward pass that libtorch's engine drives; on this backend start "
            "passes with "
            "torch.distributed.autograd.backward, RRef.backward or in TorchScript");
      });
}

} // namespace torchwire
