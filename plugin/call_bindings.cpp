#include "plugin/call_bindings.h"

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <mutex>
#include <optional>

#include "backend/agent/agent.h"
#include "backend/base/private_member.h"

namespace py = pybind11;

namespace torchwire {

// Whether anybody but who waits is to hear of a future's end.
struct FutureCallbacks {
  friend auto pointerTo(FutureCallbacks);
};
template struct PrivateMember<FutureCallbacks, &c10::ivalue::Future::callbacks_>;
struct FutureMutex {
  friend auto pointerTo(FutureMutex);
};
template struct PrivateMember<FutureMutex, &c10::ivalue::Future::mutex_>;

namespace {

using torch::distributed::rpc::RpcAgent;
using torch::jit::PythonFutureWrapper;
using Future = c10::ivalue::Future;

/// The call that a thread has sent last, and the future that it has got for it. Only compared: as long as the call is in
/// the agent's table, it keeps the future, and no other has its address.
struct LatestCall {
  const Future* future = nullptr;
  std::weak_ptr<const RpcAgent> agent;
  uint64_t id = 0;
};
thread_local LatestCall latestCall;

std::shared_ptr<Agent> currentAgent() {
  return RpcAgent::isCurrentRpcAgentSet()
      ? std::dynamic_pointer_cast<Agent>(RpcAgent::getCurrentRpcAgent())
      : nullptr;
}

/// What `invoke` returns, having noted whose call it is.
py::object callAndNote(const py::function& invoke, const py::args& args, const py::kwargs& kwargs) {
  const uint64_t before = Agent::sentByThisThread().count;
  py::object result = invoke(*args, **kwargs);
  const auto agent = currentAgent();
  if (agent && Agent::sentByThisThread().count == before + 1) {
    latestCall = {
        result.cast<std::shared_ptr<PythonFutureWrapper>>()->fut.get(), agent,
        Agent::sentByThisThread().latest};
  }
  return result;
}

// A callback could wait for a lock that this thread holds.
bool hasCallbacks(Future& future) {
  const std::lock_guard<std::mutex> lock(future.*pointerTo(FutureMutex()));
  return !(future.*pointerTo(FutureCallbacks())).empty();
}

/// Waits for the call behind the future if it is the latest of this thread's, so as to end it here. Takes the GIL away.
void awaitLatestCall(const c10::intrusive_ptr<Future>& future) {
  if (future->completed() || latestCall.future != future.get()) {
    return;
  }
  const auto agent = currentAgent();
  if (!agent || agent != latestCall.agent.lock() || hasCallbacks(*future)) {
    return;
  }
  const py::gil_scoped_release release;
  agent->await(latestCall.id, [&] { return hasCallbacks(*future); });
}

} // namespace

void bindCalls(py::module_& module) {
  module.def(
      "noting_calls",
      [](const py::function& invoke) {
        return py::cpp_function(
            [invoke](const py::args& args, const py::kwargs& kwargs) {
              return callAndNote(invoke, args, kwargs);
            },
            py::name("invoke"));
      },
      "A function that does what `invoke` does, which sends a call and returns its future.");
  module.def(
      "await_call",
      [](const std::shared_ptr<PythonFutureWrapper>& future) { awaitLatestCall(future->fut); },
      "Waits for the call behind a future, if it is the one that this thread has sent last.");
}

} // namespace torchwire
