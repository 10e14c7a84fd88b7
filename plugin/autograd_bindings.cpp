// Backward passes, for Python. Bindings only convert; each says how it treats the GIL.
#include "plugin/autograd_bindings.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "autograd/context_lifetime.h"
#include "autograd/direct_forward.h"
#include "autograd/script_operator.h"
#include "backend/agent/caller.h"
#include "backend/base/call_error.h"
#include "backend/serve/python_rref.h"
#include "backend/serve/signals.h"
#include "plugin/current_agent.h"
#include "plugin/function_wrapper.h"
#include "rref/backward.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using torch::distributed::autograd::ContextPtr;
using torch::distributed::autograd::DistAutogradContainer;

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
    contexts = agent.parts().contexts.list();
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
  } catch (...) { // which may be the end of a pass that a signal has cancelled
    raisePendingSignal();
    throw;
  }
  raisePendingSignal();
}

// No code of Python's runs between what PyTorch does here and what torchwire does: a handler of a signal may raise in it.

/// Opens a context for the calling thread.
ContextPtr newContext() {
  leaveEndedContext();
  auto context = DistAutogradContainer::getInstance().newContext();
  if (const auto agent = currentAgent()) {
    agent->parts().contexts.opened(context->contextId());
  }
  return context;
}

/// Releases the GIL.
void releaseContext(int64_t contextId) {
  const py::gil_scoped_release release;
  if (const auto agent = currentAgent()) {
    agent->parts().contexts.release(contextId);
  } else {
    DistAutogradContainer::getInstance().releaseContext(contextId);
  }
}

py::handle selfIn(const Arguments& arguments) {
  const py::handle self = arguments.find(0, "self");
  if (!self) {
    throw py::type_error("it is a method of torch.distributed.autograd.context");
  }
  return self;
}

py::object enterContext(const Arguments& arguments) {
  const py::handle self = selfIn(arguments);
  const auto context = newContext();
  try {
    py::setattr(self, "autograd_context", py::cast(context));
  } catch (const py::error_already_set&) {
    releaseContext(context->contextId());
    throw;
  }
  return py::int_(context->contextId());
}

py::object exitContext(const Arguments& arguments) {
  const py::object context = selfIn(arguments).attr("autograd_context");
  const int64_t id = context.cast<ContextPtr>()->contextId();
  if (!isOfEndedLifetime(
          id)) { // as in a child that has become a worker of its own within the block
    releaseContext(id);
  }
  return py::none();
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
          [](const std::shared_ptr<Agent>& self, const rpc::PyRRef& rref, int64_t contextId,
             bool retain) {
            const auto askOwner = [&](c10::intrusive_ptr<rpc::Message> request) {
              self->caller().call(
                  {self->getWorkerInfo(rref.owner().id_), std::move(request), rpc::kUnsetRpcTimeout,
                   JoinsContext::never},
                  [](c10::intrusive_ptr<rpc::Message>) {});
            };
            raisingSignals(
                [&] { rref::backward(self->engine(), askOwner, rrefIn(rref), contextId, retain); });
          },
          py::arg("rref"), py::arg("dist_autograd_ctx_id") = rref::kNoContext,
          py::arg("retain_graph") = false,
          "Runs a backward pass from an RRef's value, on its owner; as RRef.backward().\n\n"
          "rref: of a scalar that needs a gradient. dist_autograd_ctx_id: of a context that is "
          "open "
          "here; left out, the local pass alone is run, which only the owner can. retain_graph: as "
          "in backward().\n\n"
          "Waits for the value, where the RRef is this worker's own, until the deadline of the "
          "call "
          "that it serves. Raises as backward() does, and RuntimeError where the value is no such "
          "tensor.");
}

void bindContexts(AgentClass& agent) {
  agent.def(
      "autograd_contexts", &contextsOf,
      "A dict for each autograd context of this worker; workers by their ranks, age in seconds "
      "(None for one that no call of torchwire's has opened); see "
      "torchwire.autograd_contexts(). Raises nothing.");
}

void bindContextFunctions(py::module_& module) {
  module.def(
      "new_context", &newContext,
      "Opens an autograd context for the calling thread, as "
      "torch.distributed.autograd._new_context() "
      "does, after it has left one that was opened before the latest rpc.shutdown(). Keeps the "
      "GIL.");
  module.def(
      "release_context", &releaseContext, py::arg("context_id"),
      "Drops an autograd context here, and tells the workers that it has reached to do so, without "
      "waiting for them. Raises RuntimeError where there is no such context.");
  module.attr("enter_context") =
      makeMethod("__enter__", "Opens an autograd context, whose id it returns.", &enterContext);
  module.attr("exit_context") = makeMethod("__exit__", "Releases it.", &exitContext);
  module.def(
      "leave_context", [] { DistAutogradContainer::getInstance().clearCurrentContext(); },
      "Takes the calling thread out of the autograd context that it is in. Keeps the GIL.");
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
  bindContextFunctions(module);
}

} // namespace torchwire
