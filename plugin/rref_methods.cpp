#include "plugin/rref_methods.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_proto.h>
#include <torch/csrc/distributed/rpc/types.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/direct_forward.h"
#include "backend/agent/agent.h"
#include "backend/agent/caller.h"
#include "backend/agent/seconds.h"
#include "backend/serve/call_deadline.h"
#include "backend/serve/direct_call.h"
#include "backend/serve/python_rref.h"
#include "backend/serve/rref_type.h"
#include "backend/serve/signals.h"
#include "plugin/current_agent.h"
#include "plugin/function_wrapper.h"
#include "rref/context_lifetime.h"
#include "rref/failed_creation.h"
#include "rref/own_value.h"
#include "rref/private_members.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

// What libtorch says of an RRef whose creation has failed, and how that begins.
constexpr char kMayNotExist[] =
    "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node "
    "does not exist.";
constexpr std::string_view kNotCreated = "RRef creation via rpc.remote() timed out";

/// Throws in the place of what a method of an RRef has raised, if that is libtorch's word for an RRef whose creation has
/// failed, why it has failed.
void throwIfNotCreated(py::error_already_set& raised, const rpc::PyRRef* rref) {
  if (raised.type().ptr() != PyExc_RuntimeError || rref == nullptr) { // else it says why already
    return;
  }
  const auto text = py::str(raised.value()).cast<std::string>();
  if (text.starts_with(kNotCreated)) {
    throwCreationError(*rrefIn(*rref), text);
  }
}

/// The time-out that a method of RRefs has been called with, in seconds; kUnsetRpcTimeout where none is given; nullopt for
/// what is none, which PyTorch reports.
std::optional<float> timeoutIn(const Arguments& arguments) {
  const py::handle given = arguments.find(1, "timeout");
  if (!given) {
    return rpc::kUnsetRpcTimeout;
  }
  py::detail::make_caster<float> seconds;
  return seconds.load(given, /* convert */ true) ? std::optional(static_cast<float>(seconds))
                                                 : std::nullopt;
}

/// Of this worker's own RRef: waits for its value as long as the program has said. PyTorch would wait without end. Releases
/// the GIL.
void awaitOwnValue(const rpc::PyRRef& rref, float timeout) {
  const auto owner = c10::static_intrusive_pointer_cast<rpc::OwnerRRef>(rrefIn(rref));
  if (owner->hasValue()) { // as nearly always
    return;
  }
  auto left = CallDeadline::left();
  if (timeout > 0) {
    const auto wanted = fromSeconds(timeout);
    left = left ? std::min(*left, wanted) : wanted;
  }
  const py::gil_scoped_release release;
  torchwire::awaitOwnValue(*owner, left);
}

/// Throws what libtorch's fetch of such an RRef throws.
void expectFetchable(rpc::UserRRef& rref) {
  expectOfThisLifetime(rref);
  markIfNotCreated(rref);
  if (rref.getTimedOut()) {
    throwCreationError(rref, kMayNotExist);
    TORCH_CHECK(false, kMayNotExist);
  }
  TORCH_CHECK(
      !(rref.*pointerTo(RRefUserDeleted())), rref,
      " has been deleted. Cannot call to_here() on it after deletion.");
  TORCH_CHECK(
      !rref.type()->is_module(), rref,
      " is an RRef to a ScriptModule. It can't be sent through RPC from its owner.");
}

c10::intrusive_ptr<rpc::Message> fetchOf(const rpc::UserRRef& rref) {
  return rref.isPyObj() ? rpc::PythonRRefFetchCall(rref.owner(), rref.rrefId()).toMessage()
                        : rpc::ScriptRRefFetchCall(rref.owner(), rref.rrefId()).toMessage();
}

/// What an owner has answered. Attaches a recv function to tensors that are part of an autograd context.
std::vector<at::IValue> valuesIn(const rpc::Message& response) {
  rpc::MessageType type = response.type();
  const auto command = rpc::deserializeResponse(response, type);
  TORCH_CHECK(
      type == rpc::MessageType::PYTHON_RREF_FETCH_RET ||
          type == rpc::MessageType::SCRIPT_RREF_FETCH_RET,
      "a response of type ", type, " to the fetch of an RRef's value");
  return static_cast<rpc::RRefFetchRet&>(*command).values();
}

/// As libtorch names a fetch there.
std::string nameInProfile(const rpc::WorkerInfo& self, const rpc::WorkerInfo& owner) {
  return torch::autograd::profiler::profilerEnabled()
      ? "to_here#(" + self.name_ + ")->(" + owner.name_ + ")"
      : std::string();
}

/// The value of another worker's RRef.
py::object fetch(Agent& agent, const rpc::UserRRef& rref, float timeout) {
  const rpc::WorkerInfo& owner = agent.getWorkerInfo(rref.owner());
  RECORD_USER_SCOPE(nameInProfile(agent.getWorkerInfo(), owner));
  Caller::KnownCall call{owner, fetchOf(rref), timeout, JoinsContext::always};
  py::object value;
  std::optional<py::gil_scoped_release> release(std::in_place);
  try {
    agent.caller().call(std::move(call), [&](c10::intrusive_ptr<rpc::Message> response) {
      std::vector<at::IValue> values = valuesIn(*response);
      response.reset();
      release.reset();
      value = rref.isPyObj() ? readFetched(rpc::SerializedPyObj::fromIValues(std::move(values)))
                             : torch::jit::toPyObject(std::move(values.front()));
    });
  } catch (...) { // which may be the end of a call that a signal has cancelled
    release.reset();
    raisePendingSignal();
    throw;
  }
  raisePendingSignal();
  return value;
}

/// What a method of RRefs returns whose creation may have failed.
py::object callOfCreated(const py::function& method, bool needsValue, const Arguments& arguments) {
  const auto* const rref = arguments.first<rpc::PyRRef>();
  if (rref != nullptr) {
    markIfNotCreated(*rrefIn(*rref));
  }
  try {
    const auto timeout = timeoutIn(arguments);
    if (needsValue && rref != nullptr && rref->isOwner() && timeout && currentAgent()) {
      awaitOwnValue(*rref, *timeout);
      raisePendingSignal();
    }
    return arguments.passTo(method);
  } catch (py::error_already_set& e) {
    throwIfNotCreated(e, rref);
    throw;
  }
}

/// RRef.to_here(), of which `method` is PyTorch's.
py::object toHere(const py::function& method, const Arguments& arguments) {
  const auto* const rref = arguments.first<rpc::PyRRef>();
  const auto timeout = timeoutIn(arguments);
  const auto agent = currentAgent();
  const Py_ssize_t known = arguments.find(1, "timeout") ? 2 : 1;
  if (rref == nullptr || !timeout || arguments.count() != known || !agent) {
    return arguments.passTo(method); // which says what is wrong
  }
  if (rref->isOwner()) {
    return callOfCreated(method, /* needsValue */ true, arguments);
  }
  const auto user = c10::static_intrusive_pointer_cast<rpc::UserRRef>(rrefIn(*rref));
  expectFetchable(*user);
  return fetch(*agent, *user, *timeout);
}

} // namespace

void bindRRefMethods(py::module_& module) {
  module.def(
      "fetching_method",
      [](const py::function& method, std::string doc) {
        return makeMethod("to_here", std::move(doc), [method](const Arguments& arguments) {
          return toHere(method, arguments);
        });
      },
      py::arg("method"), py::arg("doc"),
      "A method of RRefs that does what to_here() does, `method`, and reads the answer on the "
      "thread that waits for it. It has no frame of Python's, in which the traceback of an error "
      "would keep its object.");
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
