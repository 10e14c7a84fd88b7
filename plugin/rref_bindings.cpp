// What Python sees of the RRef module. Bindings only convert; each says how it treats the GIL.
#include "plugin/rref_bindings.h"

#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include "backend/serve/python_rref.h"
#include "plugin/current_agent.h"
#include "rref/context_lifetime.h"
#include "rref/context_view.h"
#include "rref/operator_result.h"
#include "rref/rref_report.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

py::object textOrNone(const std::string& text) {
  return text.empty() ? py::none() : py::object(py::str(text));
}

py::dict toDict(const RRefStatus& rref) {
  py::dict forks;
  for (const ForkStatus& fork : rref.forks) {
    forks[py::str(fork.id)] = textOrNone(fork.holder);
  }
  py::dict dict;
  dict["role"] = rref.isOwner ? "owner" : "user";
  dict["id"] = rref.id;
  dict["owner"] = rref.owner;
  dict["type"] = textOrNone(rref.type);
  dict["forks"] = forks;
  dict["age"] = rref.ageSeconds;
  dict["state"] = rref.confirmed ? "confirmed" : "pending";
  dict["creation_site"] = textOrNone(rref.site);
  return dict;
}

/// Releases the GIL to ask the peers, and takes it to build Python objects.
py::list rrefsOfAgent(Agent& agent, double patience) {
  std::vector<RRefStatus> rrefs;
  {
    const py::gil_scoped_release release;
    rrefs = rrefsOf(
        *agent.parts().rrefs, std::chrono::milliseconds(static_cast<int64_t>(patience * 1000)));
  }
  py::list list;
  for (const RRefStatus& rref : rrefs) {
    list.append(toDict(rref));
  }
  return list;
}

/// Releases the GIL: it takes libtorch's lock.
py::dict countsOfRRefs(Agent& agent) {
  ContextCounts counts{};
  size_t running = 0;
  agent.parts()
      .expectOwnProcess(); // a child that was forked amid a shutdown would wait for them to change
  {
    const py::gil_scoped_release release;
    counts = countsOf(rpc::RRefContext::getInstance());
    running = agent.parts().rrefs->ledger().running().size();
  }
  py::dict dict;
  dict["owners"] = counts.owners;
  dict["forks"] = counts.forks;
  dict["pending_users"] = counts.pendingUsers;
  dict["confirmed_users"] = counts.confirmedUsers;
  dict["pending_children"] = counts.pendingChildren;
  dict["running_creations"] = running;
  dict["passed_forks"] = agent.parts().rrefs->passedForks().size();
  return dict;
}

/// Releases the GIL: it may send a message.
void noteRRef(const rpc::PyRRef& rref, const std::string& site) {
  const auto agent = currentAgent();
  if (!agent) {
    return;
  }
  const py::gil_scoped_release release;
  agent->parts().rrefs->noteCreated(rrefIn(rref), site);
}

using AgentBinding = py::class_<Agent, rpc::RpcAgent, std::shared_ptr<Agent>>;

void bindLifetimes(AgentBinding& agent) {
  agent
      .def_static(
          "begin_foreign_lifetime", &beginForeignRRefs, py::arg("agent"),
          py::call_guard<py::gil_scoped_release>(),
          "Has libtorch's RRefs follow an agent of another backend, which is about to start, where "
          "they have followed one of torchwire's before. Raises nothing.")
      .def_static(
          "end_lifetime", &endRRefs, py::call_guard<py::gil_scoped_release>(),
          "Lets go of the agent that has been shut down, and of its RRefs: they send nothing any "
          "more when they are dropped. Raises nothing.")
      .def_static( // keeps the GIL: it looks at numbers
          "expect_of_this_lifetime",
          [](const rpc::PyRRef& rref) { expectOfThisLifetime(*rrefIn(rref)); }, py::arg("rref"),
          "Raises RuntimeError for an RRef that was made before the latest rpc.shutdown().");
}

void bindCreations(AgentBinding& agent) {
  agent
      .def_static(
          "note_rref", &noteRRef, py::arg("rref"), py::arg("site"),
          "Has the current agent take down that the program has just made this RRef, and where (an "
          "empty text: not recorded). Sends a message where its owner is another worker; does not "
          "wait. Raises nothing.")
      .def_static(
          "expect_one_result",
          [](const std::string& name, const py::tuple& args, const py::dict& kwargs) {
            if (currentAgent()) {
              expectOneResult(name, py::args(args), py::kwargs(kwargs));
            }
          },
          py::arg("operator"), py::arg("args"), py::arg("kwargs"),
          "Raises ValueError if the builtin operator returns nothing for these arguments, or "
          "several values, and the current agent is torchwire's. Keeps the GIL.");
}

} // namespace

void bindRRefs(AgentBinding& agent) {
  bindLifetimes(agent);
  bindCreations(agent);
  agent
      .def(
          "rrefs", &rrefsOfAgent, py::arg("patience"),
          "A dict for each RRef that this worker owns or uses, ages in seconds; see "
          "torchwire.rrefs().\n\n"
          "patience: seconds for the peers to say what they hold; who does not answer is left out. "
          "Raises nothing.")
      .def(
          "rref_counts", &countsOfRRefs,
          "How many owners, forks, users, pending children and running creations there are on this "
          "worker, by name. Raises nothing.")
      .def(
          "settle_rrefs",
          [](Agent& self, float timeout, double patience) {
            self.ending().settleRRefs(
                timeout, std::chrono::milliseconds(static_cast<int64_t>(patience * 1000)));
          },
          py::arg("timeout"), py::arg("patience"), py::call_guard<py::gil_scoped_release>(),
          "Lets go what is lost of RRefs and would be waited for; all workers of a static group "
          "call "
          "it once they have met. timeout: as of wait_all_workers(), and it raises what that "
          "raises. "
          "patience: seconds for the peers to say what they hold.")
      .def(
          "end_deletes_of_rrefs", [](Agent&) { endDeletesOfRRefs(); },
          py::call_guard<py::gil_scoped_release>(),
          "From now on nothing is sent for RRefs that are dropped, until another agent starts. "
          "Raises nothing.");
}

} // namespace torchwire
