#include "plugin/pickled_rrefs.h"

#include <torch/csrc/distributed/rpc/py_rref.h>

#include <utility>

#include "backend/base/guarded.h"
#include "plugin/current_agent.h"
#include "plugin/function_wrapper.h"

namespace py = pybind11;

namespace torchwire {
namespace {

thread_local PickledRRefs* latestPickled = nullptr;

WorkerId workerAt(const py::tuple& serialized, size_t index) {
  return static_cast<WorkerId>(serialized[index].cast<int64_t>());
}

/// Of what PyRRef._serialize() returns.
PassedForks::Fork forkIn(const py::tuple& serialized) {
  const auto id = [&](size_t index) {
    return GlobalId{workerAt(serialized, index), serialized[index + 1].cast<int64_t>()};
  };
  return {id(1), id(3), workerAt(serialized, 0)};
}

} // namespace

PickledRRefs::PickledRRefs() : outer_(std::exchange(latestPickled, this)) {}

PickledRRefs::~PickledRRefs() {
  latestPickled = outer_;
}

void PickledRRefs::withdraw() {
  const auto agent = forks_.empty() ? nullptr : currentAgent();
  if (agent) {
    const py::gil_scoped_release release;
    guarded("what is pickled in vain", [&] { agent->bookkeeping().withdraw(std::move(forks_)); });
  }
}

void PickledRRefs::handOn() {
  const PickledRRefs& inner = *latestPickled;
  if (inner.outer_ != nullptr) {
    auto& outer = inner.outer_->forks_;
    outer.insert(outer.end(), inner.forks_.begin(), inner.forks_.end());
  }
}

void notePickled(const py::object& serialized) {
  const auto agent = currentAgent();
  if (!agent) {
    return;
  }
  const auto parts = serialized.cast<py::tuple>();
  const PassedForks::Fork fork = forkIn(parts);
  agent->parts().rrefs->passedForks().pickled(fork, workerAt(parts, 5));
  if (latestPickled != nullptr) {
    latestPickled->forks_.push_back(fork);
  }
}

void bindPickledRRefs(py::module_& module) {
  module.def(
      "noting_rrefs",
      [](const py::function& serialize) {
        return makeMethod("_serialize", "", [serialize](const Arguments& arguments) {
          py::object serialized = arguments.passTo(serialize);
          notePickled(serialized);
          return serialized;
        });
      },
      py::arg("serialize"),
      "A method of RRefs that does what `serialize` does, PyTorch's, and tells the agent of it.");
  module.def(
      "withdrawing_rrefs",
      [](const py::function& pickle) {
        return makeMethod("serialize", "", [pickle](const Arguments& arguments) {
          return PickledRRefs::withdrawnIfRaised([&] {
            py::object pickled = arguments.passTo(pickle);
            PickledRRefs::handOn();
            return pickled;
          });
        });
      },
      py::arg("pickle"),
      "A method of picklers that does what `pickle` does, and takes RRefs back that have been "
      "pickled if it raises.");
  module.def(
      "withdrawing_rrefs_of_call",
      [](const py::function& call) {
        return makeFunction("call", "", [call](const Arguments& arguments) {
          return PickledRRefs::withdrawnIfRaised([&] { return arguments.passTo(call); });
        });
      },
      py::arg("call"), "A function that does what `call` does, which pickles and sends. Likewise.");
}

} // namespace torchwire
