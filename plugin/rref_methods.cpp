#include "plugin/rref_methods.h"

#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/agent/seconds.h"
#include "backend/serve/answer_scope.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/python_rref.h"
#include "backend/serve/rref_type.h"
#include "backend/serve/signals.h"
#include "plugin/current_agent.h"
#include "plugin/function_wrapper.h"
#include "rref/context_lifetime.h"
#include "rref/failed_creation.h"
#include "rref/own_value.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

/// Throws in the place of what a method of an RRef has raised, if that is libtorch's word for an RRef whose creation has
/// failed, why it has failed.
void throwIfNotCreated(py::error_already_set& raised, const rpc::PyRRef* rref) {
  constexpr std::string_view kNotCreated = "RRef creation via rpc.remote() timed out";
  if (raised.type().ptr() != PyExc_RuntimeError || rref == nullptr) { // else it says why already
    return;
  }
  const auto text = py::str(raised.value()).cast<std::string>();
  if (text.starts_with(kNotCreated)) {
    throwCreationError(*rrefIn(*rref), text);
  }
}

/// Of a method that waits for the value of an RRef, which may be this worker's own: waits first, for as long as the program
/// has said. PyTorch would wait without end there.
void awaitOwnValue(const rpc::PyRRef& rref, const Arguments& arguments) {
  if (!rref.isOwner() || !currentAgent()) {
    return;
  }
  const auto owner = c10::static_intrusive_pointer_cast<rpc::OwnerRRef>(rrefIn(rref));
  if (owner->hasValue()) { // as nearly always
    return;
  }
  const py::handle given = arguments.find(1, "timeout");
  py::detail::make_caster<float> seconds;
  if (given && !seconds.load(given, /* convert */ true)) {
    return; // which PyTorch reports
  }
  const float wanted = given ? static_cast<float>(seconds) : rpc::kUnsetRpcTimeout;
  auto left = CallDeadline::left();
  if (wanted > 0) {
    const auto timeout = fromSeconds(wanted);
    left = left ? std::min(*left, timeout) : timeout;
  }
  const py::gil_scoped_release release;
  torchwire::awaitOwnValue(*owner, left);
}

/// What a method of RRefs returns that sends a call and waits for it.
py::object callAwaiting(const py::function& method, const Arguments& arguments) {
  const auto* const rref = arguments.first<rpc::PyRRef>();
  if (rref == nullptr) {
    return arguments.passTo(method); // which says so
  }
  const auto agent = currentAgent();
  if (agent && !rref->isOwner()) { // an owner's value is still here
    const auto user = rrefIn(*rref);
    expectOfThisLifetime(*user);
    markIfNotCreated(*user);
  }
  Caller::AwaitingSend scope(Agent::callerOf(agent));
  const AnswerScope answer(rref->owner().id_);
  try {
    awaitOwnValue(*rref, arguments);
    raisePendingSignal();
    return arguments.passTo(method);
  } catch (py::error_already_set& e) {
    raisePendingSignal(); // which may have cancelled the call
    throwIfNotCreated(e, rref);
    throw;
  }
}

/// What a method of RRefs returns whose creation may have failed.
py::object callOfCreated(const py::function& method, bool needsValue, const Arguments& arguments) {
  const auto* const rref = arguments.first<rpc::PyRRef>();
  if (rref != nullptr) {
    markIfNotCreated(*rrefIn(*rref));
  }
  try {
    if (needsValue && rref != nullptr) {
      awaitOwnValue(*rref, arguments);
      raisePendingSignal();
    }
    return arguments.passTo(method);
  } catch (py::error_already_set& e) {
    throwIfNotCreated(e, rref);
    throw;
  }
}

} // namespace

void bindRRefMethods(py::module_& module) {
  module.def(
      "awaiting_method",
      [](const py::function& method, std::string name, std::string doc) {
        return makeMethod(std::move(name), std::move(doc), [method](const Arguments& arguments) {
          return callAwaiting(method, arguments);
        });
      },
      py::arg("method"), py::arg("name"), py::arg("doc"),
      "A method of RRefs that does what `method` does, which sends a call and waits for it: the "
      "call has ended when it has been sent. It has no frame of Python's, in which the traceback "
      "of an error would keep its object.");
  module.def(
      "method_of_created",
      [](const py::function& method, std::string name, std::string doc, bool needsValue) {
        return makeMethod(
            std::move(name), std::move(doc), [method, needsValue](const Arguments& arguments) {
              return callOfCreated(method, needsValue, arguments);
            });
      },
      py::arg("method"), py::arg("name"), py::arg("doc"), py::arg("needs_value"),
      "A method of RRefs that does what `method` does, and says why the creation has failed where "
      "that is what it fails with. If it needs the value, and the RRef is this worker's own, it "
      "waits for that first, as signals allow.");
  module.def(
      "future_type_of", &futureTypeOf, py::arg("rref"), py::arg("timeout"),
      "The future of the type of an RRef's value, which PyTorch keeps; asked for anew where that "
      "has "
      "failed.");
  module.def(
      "type_of", &typeOf, py::arg("rref"), py::arg("timeout"),
      "That type, which is waited for. PyTorch keeps no future of it that has failed.");
}

} // namespace torchwire
