#include "plugin/call_bindings.h"

#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/profiler/orchestration/observer.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/direct_forward.h"
#include "backend/agent/agent.h"
#include "backend/agent/caller.h"
#include "backend/call/trace_log.h"
#include "backend/codec/python_codec.h"
#include "backend/serve/answer_scope.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/current_call.h"
#include "backend/serve/direct_call.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/python_rpc.h"
#include "backend/serve/script_call_writer.h"
#include "backend/serve/signals.h"
#include "plugin/call_future.h"
#include "plugin/current_agent.h"
#include "plugin/future_bindings.h"
#include "plugin/pickled_rrefs.h"
#include "plugin/rref_methods.h"
#include "plugin/unread_rrefs.h"
#include "rref/context_lifetime.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using rpc::Message;

/// Null where `to` is nothing that PyTorch takes.
const rpc::WorkerInfo* findWorker(const Agent& agent, py::handle to) {
  py::detail::make_caster<std::string> name;
  if (PyUnicode_Check(to.ptr()) && name.load(to, /* convert */ false)) {
    return &agent.getWorkerInfo(static_cast<const std::string&>(name));
  }
  py::detail::make_caster<rpc::worker_id_t> id;
  if (PyLong_Check(to.ptr()) && id.load(to, /* convert */ false)) {
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

/// What a call is of, and with what.
struct Called {
  const py::object& to;
  const py::object& function;
  /// Of an operator or a TorchScript function; nullopt: the function is one of Python.
  const std::optional<std::string>& name;
  /// A tuple and a dict. Of a call of Python perhaps something else, which is left to pickle.
  const py::object& args;
  const py::object& kwargs;
  bool isAsync;
  /// Whether the program has set a pickler of its own.
  bool hasPickler;
};

/// A call that is ready to be sent.
struct PreparedCall {
  std::shared_ptr<Agent> agent;
  const rpc::WorkerInfo& worker;
  c10::intrusive_ptr<Message> request;
  bool isDirect; // or the program's pickler may have written the result, in bytes of any kind
  JoinsContext joins;
  Caller::Result result;
  // Or whoever drops a tensor of the request, of which Python has another reference, would have to take the GIL for it.
  std::vector<at::Tensor> tensors;

  Caller::KnownCall toSend(float timeout) {
    return {worker, std::move(request), timeout, joins};
  }
};

void writePython(PreparedCall& call, const Called& called) {
  DirectRRefs rrefs(call.worker.id_, expectOfThisLifetime);
  if (!called.hasPickler) {
    call.request = writeDirectCall(
        called.function.ptr(), called.args.ptr(), called.kwargs.ptr(), called.isAsync, rrefs);
  }
  if (!call.request) {
    call.request = writePickledCall(called.function, called.args, called.kwargs, called.isAsync);
  }
  call.isDirect = own_messages::isDirectCall(*call.request);
  call.joins = JoinsContext::always;
  call.result = {
      call.isDirect ? directResult : pickledResult, at::PyObjectType::get(), rrefs.take()};
}

void writeScript(PreparedCall& call, const Called& called) {
  const bool isOperator = called.name->find("::") != std::string::npos;
  const auto args = py::reinterpret_borrow<py::args>(called.args);
  const auto kwargs = py::reinterpret_borrow<py::kwargs>(called.kwargs);
  ScriptRequest written = isOperator
      ? writeOperatorCall(*called.name, args, kwargs)
      : writeFunctionCall(*called.name, args, kwargs, called.isAsync);
  call.request = std::move(written.message);
  call.joins = isOperator ? JoinsContext::withGradients : JoinsContext::always;
  const ReadResult read = isOperator
      ? [](c10::intrusive_ptr<Message> response) { return readOperatorResult(*response); }
      : [](c10::intrusive_ptr<Message> response) { return readScriptResult(*response); };
  call.result = {read, std::move(written.result), nullptr};
}

/// Whether a profiler records calls: PyTorch's RPC knows the legacy one alone.
bool isRecorded() {
  using torch::profiler::impl::ActiveProfilerType;
  return torch::profiler::impl::profilerType() == ActiveProfilerType::LEGACY;
}

/// None where the call has to go PyTorch's way.
std::optional<PreparedCall> prepareCall(const Called& called) {
  auto agent = currentAgent();
  const rpc::WorkerInfo* const worker =
      agent && !isRecorded() ? findWorker(*agent, called.to) : nullptr;
  if (worker == nullptr) {
    return std::nullopt;
  }
  PreparedCall call{std::move(agent), *worker, {}, false, {}, {}, {}};
  PickledRRefs::withdrawnIfRaised([&] {
    if (called.name) {
      writeScript(call, called);
    } else {
      writePython(call, called);
    }
  });
  call.tensors = call.request->tensors();
  return call;
}

/// From the calling thread's first step of a call on.
TraceLog::Making makingCall() {
  const auto agent = currentAgent();
  return TraceLog::Making(agent ? &agent->parts().metrics->trace : nullptr);
}

/// The result in a tuple, or None where the call has to go PyTorch's way, and has not begun.
py::object callAndWait(const Called& called, float timeout) {
  const TraceLog::Making making = makingCall();
  auto call = prepareCall(called);
  if (!call) {
    return py::none();
  }
  py::object result;
  std::optional<py::gil_scoped_release> release(std::in_place);
  try {
    call->agent->caller().call(call->toSend(timeout), [&](c10::intrusive_ptr<Message> response) {
      if (called.name) {
        const at::IValue value = readScriptResult(*response);
        release.reset(); // and not to be taken a second time: others may wait for the GIL
        result = torch::jit::toPyObject(value);
      } else {
        if (!call->isDirect) {
          response = unwrapped(std::move(response));
        }
        release.reset();
        result = call->isDirect ? readDirectResult(*response) : readPickledResult(*response);
      }
    });
  } catch (...) { // which may be the end of a call that a signal has cancelled
    release.reset();
    raisePendingSignal();
    throw;
  }
  raisePendingSignal();
  return py::make_tuple(std::move(result));
}

/// The future, or None where the call has to go PyTorch's way, and has not begun.
py::object callAsync(const Called& called, float timeout) {
  const TraceLog::Making making = makingCall();
  auto call = prepareCall(called);
  if (!call) {
    return py::none();
  }
  Caller::Sent sent;
  {
    const py::gil_scoped_release release;
    sent = call->agent->caller().send(call->toSend(timeout), std::move(call->result));
  }
  return instanceOf(std::make_shared<CallFuture>(std::move(sent.future), call->agent, sent.callId));
}

/// What a function returns that pickles the arguments of a call and sends it PyTorch's way.
py::object callPyTorchs(const py::function& function, const py::args& args) {
  const auto agent = currentAgent();
  const auto* const worker = agent && !args.empty() ? findWorker(*agent, args[0]) : nullptr;
  // The answer may come before PyTorch says what is to be done with it.
  const AnswerScope answer(worker == nullptr ? std::nullopt : std::optional(worker->id_));
  try {
    py::object result = PickledRRefs::withdrawnIfRaised([&] { return function(*args); });
    raisePendingSignal();
    return result;
  } catch (py::error_already_set&) {
    raisePendingSignal(); // which may have made it an error of the call
    throw;
  }
}

/// Binds a function of what is called and the time-out.
template <typename Call>
void bindCall(py::module_& module, const char* name, Call call, const char* doc) {
  module.def(
      name,
      [call](
          const py::object& to, const py::object& function, const std::optional<std::string>& name,
          const py::object& args, const py::object& kwargs, float timeout, bool isAsync,
          bool hasPickler) {
        return call(Called{to, function, name, args, kwargs, isAsync, hasPickler}, timeout);
      },
      py::arg("to"), py::arg("function"), py::arg("name"), py::arg("args"), py::arg("kwargs"),
      py::arg("timeout"), py::arg("is_async"), py::arg("has_pickler"), doc);
}

// ---- deadlines, and what is served ---------------------------------------------------------------

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

void bindDeadlines(py::module_& module) {
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
  bindFutures(module);
  bindDeadlines(module);
  bindRRefMethods(module);
  bindCall(
      module, "call", &callAndWait,
      "Makes a call and waits. `name`: of a builtin operator (\"aten::add\") or of a TorchScript "
      "function (\"__torch__.f\"); None: the function is one of Python. `has_pickler`: the "
      "program has one of its own, which writes a call of Python. The result as the only element "
      "of a tuple; None where PyTorch has "
      "to make the call.");
  bindCall(
      module, "call_async", &callAsync,
      "The same, and returns the future of the result, a CallFuture.");
  module.def(
      "call_through", &callPyTorchs, py::arg("function"),
      "What a function of PyTorch's returns that pickles the arguments of a call and sends it.");
  module.def(
      "answering_worker", &AnswerScope::current,
      "The rank of the worker whose answer this thread reads; None: it reads none.");
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
}

} // namespace torchwire
