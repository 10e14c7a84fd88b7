#include "plugin/future_bindings.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "autograd/current_context.h"
#include "backend/agent/agent.h"
#include "backend/agent/forked_agent.h"
#include "backend/base/fork.h"
#include "backend/base/interruption.h"
#include "backend/serve/private_members.h"
#include "backend/serve/python_rref.h"
#include "backend/serve/signals.h"
#include "plugin/call_future.h"
#include "plugin/chained_future.h"
#include "plugin/current_agent.h"
#include "plugin/function_wrapper.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using torch::distributed::autograd::DistAutogradContainer;
using torch::jit::PythonFutureWrapper;
using Future = c10::ivalue::Future;

bool hasContext() {
  return DistAutogradContainer::getInstance().hasValidContext();
}

size_t countCallbacks(Future& future) {
  const std::lock_guard<std::mutex> lock(future.*pointerTo(FutureMutex()));
  return (future.*pointerTo(FutureCallbacks())).size();
}

// libtorch's, torchwire's, and what completes the future that the program waits for.
constexpr size_t kCreationCallbacks = 3;

// Whether the end of a call runs callbacks of the program's. One could wait for a lock that this thread holds.
bool hasCallbacks(const CallFuture& future) {
  const auto creation = future.creation.lock();
  return countCallbacks(*future.fut) > 0 ||
      (creation && countCallbacks(*creation) > kCreationCallbacks);
}

// ---- waiting ------------------------------------------------------------------------------------

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

/// Waits for the call and ends it here, where callbacks allow it. Without the GIL.
void awaitCall(const CallFuture& future) {
  const auto agent = future.agent.lock();
  if (agent && !hasCallbacks(future)) {
    agent->caller().await(future.callId, [&] { return hasCallbacks(future); });
  }
}

/// Without the GIL.
bool giveUp(const CallFuture& call) {
  const auto agent = call.agent.lock();
  return agent && agent->caller().cancel(call.callId);
}

/// Waits for the future as signals allow, which libtorch would not. Releases the GIL.
void awaitDone(py::handle object) {
  const auto* const call = callFutureIn(object);
  const auto future = call != nullptr ? call->fut : object.cast<PythonFutureWrapper*>()->fut;
  if (future->completed()) {
    return;
  }
  expectToEnd();
  const py::gil_scoped_release release;
  if (call != nullptr) {
    awaitCall(*call);
  }
  if (future->completed() || !currentAgent()) {
    return;
  }
  try {
    awaitFuture(*future);
  } catch (const Interrupted&) {
    if (call != nullptr) {
      giveUp(*call); // as Caller::await() does
    }
    throw;
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
bool cancelCall(py::handle future) {
  const auto* const call = callFutureIn(future);
  if (call == nullptr || call->isCreation) {
    throw py::value_error(
        "torchwire.cancel() takes the future of a call that rpc.rpc_async() has made on torchwire, "
        "and "
        "the legacy profiler has not recorded");
  }
  const py::gil_scoped_release release;
  return giveUp(*call);
}

// ---- creations ----------------------------------------------------------------------------------

/// What RRef._get_future() returns, as a future that knows its call.
py::object creationFuture(const py::function& method, const Arguments& arguments) {
  py::object future = arguments.passTo(method);
  const auto* const rref = arguments.first<rpc::PyRRef>();
  const auto agent = currentAgent();
  const auto creation = rref != nullptr ? rrefIn(*rref)->getOwnerCreationFuture() : nullptr;
  if (!agent || !creation) {
    return future;
  }
  const uint64_t callId = agent->caller().creationOf(*creation).value_or(CallFuture::kEnded);
  return instanceOf(
      std::make_shared<CallFuture>(
          future.cast<PythonFutureWrapper&>().fut, agent, callId, creation));
}

} // namespace

void bindFutures(py::module_& module) {
  module.def(
      "set_call_future_class", &setCallFutureClass, py::arg("type"),
      "Has futures of calls be instances of it.");
  module.def("cancel_call", &cancelCall, py::arg("future")); // releases the GIL
  module.def(
      "expect_to_end", &expectToEnd,
      "Raises RuntimeError in a process that was forked from a worker, where nothing that is not "
      "completed will be.");
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
      "waiting_method",
      [](const py::function& wait, std::string doc) {
        return makeMethod("wait", std::move(doc), [wait](const Arguments& arguments) {
          if (arguments.first<PythonFutureWrapper>() != nullptr) {
            awaitDone(arguments.find(0, ""));
            raisePendingSignal();
          }
          return arguments.passTo(wait);
        });
      },
      py::arg("wait"), py::arg("doc"),
      "A method of futures that does what `wait` does, and first waits as signals allow; the "
      "thread that waits for a CallFuture reads the answer itself. It has no frame of Python's, in "
      "which the traceback of an error would keep the future.");
  module.def(
      "creation_future_method",
      [](const py::function& method, std::string doc) {
        return makeMethod("_get_future", std::move(doc), [method](const Arguments& arguments) {
          return creationFuture(method, arguments);
        });
      },
      py::arg("method"), py::arg("doc"),
      "A method of RRefs that does what `method` does, and returns a CallFuture.");
}

} // namespace torchwire
