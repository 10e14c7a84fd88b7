// Backward passes, for Python. Bindings only convert; each says how it treats the GIL.
#include "plugin/autograd_bindings.h"

#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

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
          py::arg("contextId"), py::arg("roots"), py::arg("retain_graph") = false)
      .def(
          "backward_from_rref",
          [](Agent& self, const rpc::PyRRef& rref, int64_t contextId, bool retain) {
            raisingSignals(
                [&] { rref::backward(self.engine(), self, rrefOf(rref), contextId, retain); });
          },
          py::arg("rref"), py::arg("dist_autograd_ctx_id") = rref::kNoContext,
          py::arg("retain_graph") = false);
}

void bindContexts(AgentClass& agent) {
  agent
      .def(
          "context_opened",
          [](Agent& self, int64_t contextId) { self.contexts().opened(contextId); },
          py::arg("context_id"), ReleaseGil())
      .def(
          "release_context",
          [](Agent& self, int64_t contextId) { self.contexts().release(contextId); },
          py::arg("context_id"), ReleaseGil())
      .def(
          "autograd_contexts", &contextsOf,
          "A dict for each autograd context; workers by their ranks.");
}

} // namespace

void bindAutograd(py::module_& module, AgentClass& agent) {
  bindBackward(agent);
  bindContexts(agent);
  // Keeps the GIL: nothing is run.
  module.def("replace_script_operator", &replaceScriptOperator);
}

} // namespace torchwire
