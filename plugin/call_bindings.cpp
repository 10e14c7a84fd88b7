#include "plugin/call_bindings.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/current_context.h"
#include "backend/agent/agent.h"
#include "backend/agent/forked_agent.h"
#include "backend/base/call_error.h"
#include "backend/base/fork.h"
#include "backend/codec/python_codec.h"
#include "backend/serve/answer_scope.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/current_call.h"
#include "backend/serve/direct_call.h"
#include "backend/serve/private_members.h"
#include "backend/serve/python_rpc.h"
#include "backend/serve/python_rref.h"
#include "backend/serve/signals.h"
#include "plugin/chained_future.h"
#include "plugin/current_agent.h"
#include "plugin/function_wrapper.h"
#include "plugin/pickled_rrefs.h"
#include "plugin/rref_methods.h"
#include "plugin/unread_rrefs.h"
#include "rref/context_lifetime.h"

namespace py = pybind11;

namespace torchwire {

namespace {

namespace rpc = torch::distributed::rpc;
using torch::distributed::autograd::DistAutogradContainer;
using torch::jit::PythonFutureWrapper;
using Future = c10::ivalue::Future;

/// The call that a thread has sent last, and the future that it has got for it. Only compared: as long as the call is in
/// the agent's table, it keeps the future, and no other has its address.
struct LatestCall {
  const Future* future = nullptr;
  std::weak_ptr<const Agent> agent;
  uint64_t id = 0;
  c10::weak_intrusive_ptr<Future> creation; // of an RRef, which completes `future`; or expired

  LatestCall() : creation(c10::intrusive_ptr<Future>()) {}
  /// The one that `sender` has just sent on this thread.
  LatestCall(
      const PythonFutureWrapper& got, const std::shared_ptr<Agent>& sender,
      const c10::intrusive_ptr<Future>& creation = {})
      : future(got.fut.get()),
        agent(sender),
        id(Caller::sentByThisThread().latest),
        creation(creation) {}
};
thread_local LatestCall latestCall;

// Whether the program waits at once for the call that this thread is about to send.
thread_local bool programWaits = false;

/// To whom a function of libtorch's sends that gets this.
std::optional<WorkerId> destinationIn(const Arguments& arguments) {
  const auto* const worker = arguments.first<rpc::WorkerInfo>();
  return worker == nullptr ? std::nullopt : std::optional(worker->id_);
}

/// What `invoke` returns, having noted whose call it is. If the program waits, the call has ended.
py::object callAndNote(const py::function& invoke, const Arguments& arguments) {
  const auto agent = currentAgent();
  Caller::AwaitingSend scope(Agent::callerOf(std::exchange(programWaits, false) ? agent : nullptr));
  const uint64_t before = Caller::sentByThisThread().count;
  const AnswerScope answer(destinationIn(arguments)); // which may have come by the time
  py::object result = arguments.passTo(invoke);
  if (agent && Caller::sentByThisThread().count == before + 1) {
    latestCall = LatestCall(*result.cast<std::shared_ptr<PythonFutureWrapper>>(), agent);
  }
  return result;
}

/// What a function returns that pickles the arguments of a call, sends it, and perhaps waits for it.
py::object callSending(bool waits, const py::function& function, const py::args& args) {
  const bool outer = std::exchange(programWaits, waits);
  const auto restore = c10::make_scope_exit([outer] { programWaits = outer; });
  try {
    py::object result = PickledRRefs::withdrawnIfRaised([&] { return function(*args); });
    raisePendingSignal();
    return result;
  } catch (py::error_already_set&) {
    raisePendingSignal(); // which may have made it an error of the call
    throw;
  }
}

/// As callAndNote(), for the creation of an RRef and the future that the program has got for it.
void noteCreation(const rpc::PyRRef& rref, const PythonFutureWrapper& future) {
  const auto creation = rrefIn(rref)->getOwnerCreationFuture();
  const auto agent = currentAgent();
  if (agent && creation && creation.get() == Caller::sentByThisThread().future) {
    latestCall = LatestCall(future, agent, creation);
  }
}

size_t countCallbacks(Future& future) {
  const std::lock_guard<std::mutex> lock(future.*pointerTo(FutureMutex()));
  return (future.*pointerTo(FutureCallbacks())).size();
}

// libtorch's, torchwire's, and what completes the future that the program waits for.
constexpr size_t kCreationCallbacks = 3;

// Whether the end of a call runs callbacks of the program's. One could wait for a lock that this thread holds.
bool hasCallbacks(Future& future) {
  const auto creation =
      latestCall.future == &future ? latestCall.creation.lock() : c10::intrusive_ptr<Future>();
  return countCallbacks(future) > 0 || (creation && countCallbacks(*creation) > kCreationCallbacks);
}

// ---- calls of Python functions ------------------------------------------------------------------

using rpc::Message;

bool hasContext() {
  return DistAutogradContainer::getInstance().hasValidContext();
}

/// Null where `to` is nothing that PyTorch takes.
const rpc::WorkerInfo* findWorker(const Agent& agent, py::handle to) {
  py::detail::make_caster<std::string> name;
  if (PyUnicode_CheckExact(to.ptr()) && name.load(to, /* convert */ false)) {
    return &agent.getWorkerInfo(static_cast<const std::string&>(name));
  }
  py::detail::make_caster<rpc::worker_id_t> id;
  if (PyLong_CheckExact(to.ptr()) && id.load(to, /* convert */ false)) {
    return &agent.getWorkerInfo(static_cast<rpc::worker_id_t>(id));
  }
  return py::isinstance<rpc::WorkerInfo>(to) ? to.cast<const rpc::WorkerInfo*>() : nullptr;
}

/// As PyTorch writes it: for what writeDirectCall() cannot.
c10::intrusive_ptr<Message> writePickledCall(
    const py::object& function, const py::object& args, const py::object& kwargs, bool isAsync) {
  const auto& python = PythonRpc::get();
  auto [pickle, tensors] = python.pickle(python.PythonUDF(function, args, kwargs));
  std::vector<char> body;
  body.reserve(1 + pickle.size());
  body.push_back(isAsync ? 1 : 0);
  body.insert(body.end(), pickle.begin(), pickle.end());
  return c10::make_intrusive<Message>(
      std::move(body), std::move(tensors), rpc::MessageType::PYTHON_CALL);
}

/// Null for a call that PyTorch has to make part of an autograd context.
c10::intrusive_ptr<Message> writeCall(
    const py::object& function, const py::object& args, const py::object& kwargs, bool isAsync,
    DirectRRefs& rrefs) {
  auto direct = writeDirectCall(function.ptr(), args.ptr(), kwargs.ptr(), isAsync, rrefs);
  return direct || hasContext() ? direct : writePickledCall(function, args, kwargs, isAsync);
}

/// A call of a Python function that is ready to be sent.
struct PreparedCall {
  std::shared_ptr<Agent> agent;
  const rpc::WorkerInfo& worker;
  c10::intrusive_ptr<Message> request;
  // Or whoever drops a tensor of the request, of which Python has another reference, would have to take the GIL for it.
  std::vector<at::Tensor> tensors;
  std::shared_ptr<KeptRRefs> rrefs; // until the call is over
};

/// None where the call has to go PyTorch's way.
std::optional<PreparedCall> prepareCall(
    std::shared_ptr<Agent> agent, const py::object& to, const py::object& function,
    const py::object& args, const py::object& kwargs, bool isAsync) {
  const rpc::WorkerInfo* const worker =
      agent && !torch::autograd::profiler::profilerEnabled() ? findWorker(*agent, to) : nullptr;
  if (worker == nullptr) {
    return std::nullopt;
  }
  DirectRRefs rrefs(worker->id_, expectOfThisLifetime);
  auto request = PickledRRefs::withdrawnIfRaised(
      [&] { return writeCall(function, args, kwargs, isAsync, rrefs); });
  if (!request) {
    return std::nullopt;
  }
  std::vector<at::Tensor> tensors = request->tensors();
  return PreparedCall{
      std::move(agent), *worker, std::move(request), std::move(tensors), rrefs.take()};
}

const TraceLog* traceOf(const std::shared_ptr<Agent>& agent) {
  return agent ? &agent->callMetrics().trace : nullptr;
}

/// The result in a tuple, or None where the call has to go PyTorch's way, and has not begun.
py::object callPython(
    const py::object& to, const py::object& function, const py::object& args,
    const py::object& kwargs, float timeout, bool isAsync) {
  auto agent = currentAgent();
  const TraceLog::Making making(traceOf(agent));
  auto call = prepareCall(std::move(agent), to, function, args, kwargs, isAsync);
  if (!call) {
    return py::none();
  }
  py::object result;
  std::optional<py::gil_scoped_release> release(std::in_place);
  try {
    call->agent->caller().call(
        call->worker, std::move(call->request), timeout, [&](Message& response) {
          release.reset(); // and not to be taken a second time: others may wait for the GIL
          result = readPythonResult(response);
        });
  } catch (...) { // which may be the end of a call that a signal has cancelled
    release.reset();
    raisePendingSignal();
    throw;
  }
  raisePendingSignal();
  return py::make_tuple(std::move(result));
}

/// Whose call a future is of. In the form of what PyTorch lets a future do with its value when it is asked for.
struct SentPythonCall {
  std::weak_ptr<Agent> agent;
  uint64_t id;
  void operator()(const py::object& /* result */) const {}
};

/// The future, or None where the call has to go PyTorch's way, and has not begun.
py::object callPythonAsync(
    const py::object& to, const py::object& function, const py::object& args,
    const py::object& kwargs, float timeout, bool isAsync) {
  auto agent = currentAgent();
  const TraceLog::Making making(traceOf(agent));
  auto call = prepareCall(std::move(agent), to, function, args, kwargs, isAsync);
  if (!call) {
    return py::none();
  }
  c10::intrusive_ptr<Future> future;
  {
    const py::gil_scoped_release release;
    future = call->agent->caller().send(
        call->worker, std::move(call->request), timeout, pythonResult, std::move(call->rrefs));
  }
  return py::cast(
      std::make_shared<PythonFutureWrapper>(
          std::move(future), SentPythonCall{call->agent, Caller::sentByThisThread().latest}));
}

// ---- waiting ------------------------------------------------------------------------------------

/// The call behind a future, and the agent that has made it: of any call of a Python function, and of the latest other call
/// of this thread.
std::optional<std::pair<std::shared_ptr<Agent>, uint64_t>> callBehind(
    const PythonFutureWrapper& future) {
  if (const auto* sent =
          future.unwrap_func ? future.unwrap_func->target<SentPythonCall>() : nullptr) {
    return std::pair(sent->agent.lock(), sent->id);
  }
  const auto agent = latestCall.future == future.fut.get() ? currentAgent() : nullptr;
  if (agent && agent == latestCall.agent.lock()) {
    return std::pair(agent, latestCall.id);
  }
  return std::nullopt;
}

/// Throws in a forked child whose only thread is about to wait: nobody will complete the future, which may be that of a
/// call of the parent's, or come of one.
void expectToEnd() {
  if (forkGeneration() == 0) { // as nearly always
    return;
  }
  const auto forked = ForkedAgent::current();
  if (!forked) {
    return;
  }
  const std::filesystem::directory_iterator threads("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) == 1) {
    throw std::runtime_error("this future is not completed, and will not be: " + forked->refusal());
  }
}

/// Waits for the call behind the future, so as to end it here, or else for the future: libtorch would run no handlers of
/// signals meanwhile. Releases the GIL.
void awaitCall(const PythonFutureWrapper& future) {
  if (future.fut->completed()) {
    return;
  }
  expectToEnd();
  const auto call = hasCallbacks(*future.fut) ? std::nullopt : callBehind(future);
  const py::gil_scoped_release release;
  if (call && call->first) {
    call->first->caller().await(call->second, [&] { return hasCallbacks(*future.fut); });
  }
  if (!future.fut->completed() && currentAgent()) {
    awaitFuture(*future.fut);
  }
}

// ---- callbacks ----------------------------------------------------------------------------------

constexpr int64_t kNoContext = -1; // as PyTorch has it

int64_t ifOpen(int64_t context) {
  try {
    DistAutogradContainer::getInstance().isValidContext(context);
    return context;
  } catch (const c10::Error&) {
    return kNoContext;
  }
}

/// The callback, to run in the autograd context that is the thread's now, if there is one; in none where that has been released
/// by then. A process that it forks ends with it, unless it was called by code of Python's that goes on there.
py::object inCurrentContext(const py::function& callback) {
  const int64_t context = hasContext() ? DistAutogradContainer::currentContextId() : kNoContext;
  return py::cpp_function([callback, context](const py::args& args) -> py::object {
    const bool isOutermost = PyEval_GetFrame() == nullptr;
    const uint64_t generation = forkGeneration();
    const auto end = c10::make_scope_exit([&] {
      if (isOutermost) {
        endIfForkedSince(generation);
      }
    });
    std::optional<CurrentContext> current;
    if (context != kNoContext) {
      current.emplace(ifOpen(context));
    }
    return callback(*args);
  });
}

// ---- giving up ----------------------------------------------------------------------------------

/// Whether the call has ended by this.
bool cancelCall(const PythonFutureWrapper& future) {
  const auto call = callBehind(future);
  const bool isCreation =
      latestCall.future == future.fut.get() && latestCall.creation.lock() != nullptr;
  if (!call || isCreation) {
    throw py::value_error(
        "torchwire.cancel() takes the future of a call: of a Python function, by rpc_async, or of "
        "the "
        "call that this thread has made last");
  }
  const py::gil_scoped_release release;
  return call->first && call->first->caller().cancel(call->second);
}

/// As time.monotonic() counts, which has the same clock.
std::optional<double> setDeadline(const std::optional<double>& seconds) {
  using Duration = CallDeadline::TimePoint::duration;
  using Seconds = std::chrono::duration<double>;
  std::optional<CallDeadline::TimePoint> next;
  if (seconds) {
    next = CallDeadline::TimePoint(std::chrono::duration_cast<Duration>(Seconds(*seconds)));
  }
  const auto before = CallDeadline::set(next);
  return before ? std::optional(Seconds(before->time_since_epoch()).count()) : std::nullopt;
}

bool isCancelled(const WatchedCall& call) {
  return call.cancellation && call.cancellation->isRequested();
}

bool addCancelCallback(const WatchedCall& call, py::function callback) {
  if (!call.cancellation) {
    return true; // nobody cancels it
  }
  // Wherever it is dropped, it takes the GIL for it.
  const auto kept = std::make_shared<torch::jit::PythonFunctionGuard>(std::move(callback));
  Task task([kept] {
    const py::gil_scoped_acquire gil;
    try {
      kept->func_();
    } catch (py::error_already_set& e) { // Python is about to end
      e.discard_as_unraisable("a callback of a cancelled call");
    }
  });
  return call.cancellation->add(task);
}

void bindGivingUp(py::module_& module) {
  // Releases the GIL.
  module.def("cancel_call", [](const std::shared_ptr<PythonFutureWrapper>& future) {
    return cancelCall(*future);
  });
  module.def(
      "set_deadline", &setDeadline, py::arg("seconds"),
      "By when, in time.monotonic()'s seconds, calls of this thread have to end; None: whenever. "
      "Returns what it was.");
  // Keeps the GIL: a lock is held for a moment at most.
  py::class_<WatchedCall>(module, "WatchedCall", "A call that this worker serves.")
      .def_readonly("caller", &WatchedCall::caller)
      .def_property_readonly("is_cancelled", &isCancelled)
      .def(
          "add_cancel_callback", &addCancelCallback,
          "Takes a function that raises nothing. False if the call has been cancelled: it does not "
          "run then.");
  module.def("watch_served_call", &ServingScope::watch, "What this thread serves.");
}

} // namespace

void bindCalls(py::module_& module) {
  dropUnreadRRefs();
  PythonRpc::load();
  noteMainThread();
  bindGivingUp(module);
  bindRRefMethods(module);
  module.def(
      "call_python", &callPython, py::arg("to"), py::arg("function"), py::arg("args"),
      py::arg("kwargs"), py::arg("timeout"), py::arg("is_async"),
      "Calls a Python function and waits. The result as the only element of a tuple; None where "
      "PyTorch has to make the "
      "call.");
  module.def(
      "call_python_async", &callPythonAsync, py::arg("to"), py::arg("function"), py::arg("args"),
      py::arg("kwargs"), py::arg("timeout"), py::arg("is_async"),
      "Calls a Python function. The future of its result; None where PyTorch has to make the "
      "call.");
  module.def(
      "_encode_value",
      [](const py::object& value) -> std::optional<std::pair<py::bytes, std::vector<at::Tensor>>> {
        std::vector<char> bytes;
        std::vector<at::Tensor> tensors;
        if (!PythonWriter(bytes, tensors).value(value.ptr())) {
          return std::nullopt;
        }
        return std::pair(py::bytes(bytes.data(), bytes.size()), std::move(tensors));
      },
      "For tests: a value as direct calls write it. None: it is left to pickle.");
  module.def(
      "_decode_value",
      [](std::string_view bytes, const std::vector<at::Tensor>& tensors) {
        ByteReader in(bytes.data(), bytes.size());
        return PythonReader(in, tensors).value();
      },
      "For tests: the reverse.");
  module.def(
      "noting_calls",
      [](const py::function& invoke) {
        return makeFunction("invoke", "", [invoke](const Arguments& arguments) {
          return callAndNote(invoke, arguments);
        });
      },
      "A function that does what `invoke` does, which sends a call and returns its future.");
  module.def(
      "note_creation",
      [](const rpc::PyRRef& rref, const std::shared_ptr<PythonFutureWrapper>& future) {
        noteCreation(rref, *future);
      },
      "Says that the future ends when the owner has confirmed the RRef.");
  module.def(
      "call_sending", &callSending, py::arg("waits"), py::arg("function"),
      "What a function returns that sends a call, through one that noting_calls() has made. If it "
      "`waits`, the call has ended when it has been sent: nobody else can have its future.");
  module.def(
      "chain",
      [](const std::shared_ptr<PythonFutureWrapper>& first, py::function next,
         const PythonFutureWrapper& future) {
        chain(first, std::move(next), future.fut);
        raisePendingSignal(); // of a handler that has interrupted `next`
      },
      py::arg("first"), py::arg("next"), py::arg("future"),
      "Completes `future` as the one that `next` returns, which is called with the value of "
      "`first`.");
  // Keeps the GIL: a lock is held for a moment at most.
  module.def(
      "in_current_context", &inCurrentContext, py::arg("callback"),
      "A callback that does what `callback` does, in the autograd context that is current now. A "
      "process that it forks ends with it.");
  module.def(
      "answering_worker", &AnswerScope::current,
      "The rank of the worker whose answer this thread reads; None: it reads none.");
  module.def(
      "waiting_method",
      [](const py::function& wait, std::string doc) {
        return makeMethod("wait", std::move(doc), [wait](const Arguments& arguments) {
          if (const auto* const future = arguments.first<PythonFutureWrapper>()) {
            awaitCall(*future);
            raisePendingSignal();
          }
          return arguments.passTo(wait);
        });
      },
      py::arg("wait"), py::arg("doc"),
      "A method of futures that does what `wait` does, and first waits for the call behind the "
      "future, if that is known: it is of a Python function, or the one that this thread has sent "
      "last. It has no frame of Python's, in which the traceback of an error would keep the "
      "future.");
}

} // namespace torchwire
