#include "plugin/unread_rrefs.h"

#include <c10/util/ScopeExit.h>

#include <cstddef>
#include <optional>
#include <utility>

#include "backend/serve/signals.h"
#include "plugin/current_agent.h"
#include "plugin/function_wrapper.h"

namespace py = pybind11;

namespace torchwire {
namespace {

// How often a handler of a signal may interrupt the dropping before it goes on.
constexpr int kMostInterruptions = 1000;

// How many RRefs this thread has received, in the pickle that it reads at present.
thread_local size_t received = 0;

/// Throws what a handler of a signal has raised meanwhile, once all are dropped.
void dropUnread(const py::function& drop, const py::handle& pickle) {
  std::optional<py::error_already_set> interruption;
  for (int i = 0; i < kMostInterruptions; ++i) {
    try {
      drop(pickle, received);
      break;
    } catch (py::error_already_set& e) {
      if (!isOfHandler(e)) {
        break;
      }
      interruption = e; // the next attempt goes on behind those that this one has received
    }
  }
  if (interruption) {
    throwInterruption(*interruption);
  }
}

/// Of what PyTorch returns in the place of what it cannot unpickle: an AttributeError that was sent has no cause.
bool isUnread(const py::object& value) {
  if (Py_TYPE(value.ptr()) != reinterpret_cast<PyTypeObject*>(PyExc_AttributeError)) {
    return false;
  }
  return bool(py::reinterpret_steal<py::object>(PyException_GetCause(value.ptr())));
}

/// What torchwire's functions of Python are called for here.
struct Functions {
  py::function deserialize;
  py::function drop;
};

py::object deserialize(const Functions& functions, const Arguments& arguments) {
  const size_t outer = std::exchange(received, 0); // of a pickle in which this one is packed
  const auto restore = c10::make_scope_exit([outer] { received = outer; });
  const auto pickle = arguments.find(0, "binary_data");
  if (!pickle || !currentAgent()) {
    return arguments.passTo(functions.deserialize);
  }
  try {
    py::object value = arguments.passTo(functions.deserialize);
    if (isUnread(value)) {
      dropUnread(functions.drop, pickle);
    }
    return value;
  } catch (py::error_already_set& e) {
    dropUnread(functions.drop, pickle);
    if (isOfHandler(e)) {
      throwInterruption(e);
    }
    throw;
  }
}

void replaceForGood(const char* name, const py::object& replacement) {
  const auto replacing = makeFunction(
      "replacing", "", [replacement](const Arguments& /*given*/) { return replacement; });
  py::module_::import("torchwire.replaced").attr("for_good")(name, replacing);
}

} // namespace

void dropUnreadRRefs() {
  const auto internal = py::module_::import("torch.distributed.rpc.internal");
  const auto rref = py::module_::import("torch._C._distributed_rpc").attr("PyRRef");
  const Functions functions{
      internal.attr("deserialize"), py::module_::import("torchwire.unread_rrefs").attr("drop")};
  replaceForGood(
      "torch.distributed.rpc.internal.deserialize",
      makeFunction("deserialize", "", [functions](const Arguments& given) {
        return deserialize(functions, given);
      }));
  const py::function receive = rref.attr("_deserialize");
  const py::object receiver =
      makeFunction("_py_rref_receiver", "", [receive](const Arguments& given) {
        ++received; // one that cannot be received cannot be dropped either
        return py::object(receive(given.find(1, "rref_fork_data")));
      });
  replaceForGood(
      "torch.distributed.rpc.internal._InternalRPCPickler._py_rref_receiver",
      py::reinterpret_steal<py::object>(PyClassMethod_New(receiver.ptr())));
}

} // namespace torchwire
