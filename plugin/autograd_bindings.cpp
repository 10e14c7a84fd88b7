// Backward passes, for Python. Bindings only convert; each says how it treats the GIL.
#include "plugin/autograd_bindings.h"

#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "autograd/context_lifetime.h"
#include "autograd/script_operator.h"
#include "backend/base/call_error.h"
#include "backend/serve/signals.h"
#include "rref/backward.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

c10::intrusive_ptr<rpc::RRef> rrefOf(const rpc::PyRRef& rref) {
  return c10::static_intrusive_pointer_cast<rpc::RRef>(rref.toIValue().toRRef());
}

py::dict toDict(const ContextStatus& context) {
  py::dict dict;
  dict["id"] = context.id;
  dict["creator"] = context.creator;
  dict["known_workers"] = std::vector<WorkerId>(context.known.begin(), context.known.end());
  dict["send_functions"] = context.sendFunctions;
  dict["recv_functions"] = context.recvFunctions;
  dict["gradients"] = context.gradients;
  dict["age"] = context.registry ? py::cast(context.registry->age.count()) : py::none();
  dict["calls"] = context.registry ? context.registry->calls : 0;
  dict["released"] = context.registry && context.registry->released;
  dict["backward"] = context.backward;
  return dict;
}

/// Releases the GIL to collect, and takes it to build Python objects.
py::list contextsOf(Agent& agent) {
  std::vector<ContextStatus> contexts;
  {
    const py::gil_scoped_release release;
    contexts = agent.contexts().list();
  }
  py::list list;
  for (const ContextStatus& context : contexts) {
    list.append(toDict(context));
  }
  return list;
}

/// Runs a backward pass without the GIL.
template <typename Backward>
void raisingSignals(Backward backward) {
  try {
    const py::gil_scoped_release release;
    backward();
  } catch (const CallError&) { // which may be the end of a pass that a signal has cancelled
    raisePendingSignal();
    throw;
  }
}

void bindBackward(AgentClass& agent) {
  // As PyTorch's own ways in name their arguments. All release the GIL: a pass runs Python hooks on other threads.
  agent
      .def(
          "backward",
          [](Agent& self, int64_t contextId, const torch::autograd::variable_list& roots,
             bool retain) {
            raisingSignals([&] { self.engine().backward(contextId, roots, retain); });
          },
          py::arg("contextId"), py::arg("roots"), py::arg("retain_graph") = false,
          "Runs the backward pass of a context from these roots, on all workers that it has "
          "reached, and waits for its end; as torch.distributed.autograd.backward().\n\n"
          "contextId: of a context that is open here. roots: scalars that need a gradient. "
          "retain_graph: whether the graph is kept for another pass (default: no). Waits for each "
          "message as long as rpc_timeout says.\n\n"
          "Raises RuntimeError where a root is no such tensor, the context is unknown, or a "
          "function in the graph has failed, here or elsewhere; RpcError where a worker cannot be "
          "reached; KeyboardInterrupt at Ctrl-C.")
      .def(
          "backward_from_rref",
          [](Agent& self, const rpc::PyRRef& rref, int64_t contextId, bool retain) {
            raisingSignals(
                [&] { rref::backward(self.engine(), self, rrefOf(rref), contextId, retain); });
          },
          py::arg("rref"), py::arg("dist_autograd_ctx_id") = rref::kNoContext,
          py::arg("retain_graph") = false,
          "Runs a backward pass from an RRef's value, on its owner; as RRef.backward().\n\n"
          "rref: of a scalar that needs a gradient. dist_autograd_ctx_id: of a context that is "
          "open "
          "here; left out, the local pass alone is run, which only the owner can. retain_graph: as "
          "in backward().\n\n"
          "Raises as backward() does, and RuntimeError where the value is no such tensor.");
}

void bindContexts(AgentClass& agent) {
  agent
      .def(
          "context_opened",
          [](Agent& self, int64_t contextId) { self.contexts().opened(contextId); },
          py::arg("context_id"), ReleaseGil(),
          "Notes that the program has opened an autograd context, from when its age counts. "
          "Raises nothing.")
      .def(
          "release_context",
          [](Agent& self, int64_t contextId) { self.contexts().release(contextId); },
          py::arg("context_id"), ReleaseGil(),
          "Drops an autograd context here, and tells the workers that it has reached to do so, "
          "without waiting for them. Raises RuntimeError where there is no such context.")
      .def(
          "autograd_contexts", &contextsOf,
          "A dict for each autograd context of this worker; workers by their ranks, age in seconds "
          "(None for one that no call of torchwire's has opened); see "
          "torchwire.autograd_contexts(). Raises nothing.");
}

} // namespace

void bindAutograd(py::module_& module, AgentClass& agent) {
  bindBackward(agent);
  bindContexts(agent);
  // These keep the GIL: nothing is run.
  module.def("replace_script_operator", &replaceScriptOperator);
  module.def(
      "move_contexts_to", &moveContextsTo, py::arg("worker"),
      "Prepares libtorch's autograd contexts for another rank than this process has had before.");
  module.def(
      "leave_ended_context", &leaveEndedContext,
      "Takes the calling thread out of an autograd context that was opened before the latest "
      "rpc.shutdown(), if it is in one.");
}

} // namespace torchwire
