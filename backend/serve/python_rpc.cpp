#include "backend/serve/python_rpc.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <string>
#include <vector>

#include "backend/base/private_member.h"

namespace torchwire {

// For libtorch's own handler of Python.
struct GilWaitTime {
  friend auto pointerTo(GilWaitTime);
};
template struct PrivateMember<GilWaitTime, &torch::distributed::rpc::RpcAgent::addGilWaitTime>;

namespace {

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;

const PythonRpc* loaded = nullptr; // for good: Python may have ended when the process does

} // namespace

void PythonRpc::load() {
  if (loaded != nullptr) {
    return;
  }
  const auto module = py::module_::import("torch.distributed.rpc.internal");
  const py::object handle = module.attr("_handle_exception"); // torchwire.remote_errors', as a rule
  loaded = new PythonRpc{
      .runFunction = module.attr("_run_function"),
      .raise = py::module_::import("torchwire.remote_errors").attr("raise_only"),
      .serialize = module.attr("serialize"),
      .deserialize = module.attr("deserialize"),
      .handleException = py::getattr(handle, "__wrapped__", handle),
      .raiseRemote = handle,
      .PythonUDF = module.attr("PythonUDF"),
      .RemoteException = module.attr("RemoteException"),
      .RRef = py::module_::import("torch.distributed.rpc.api").attr("RRef"),
      .PyRRef = py::module_::import("torch._C._distributed_rpc").attr("PyRRef"),
      .InContext = py::module_::import("torchwire.trace_context").attr("InContext"),
      .reducers = module.attr("_internal_rpc_pickler").attr("_class_reducer_dict")};
}

const PythonRpc& PythonRpc::get() {
  return *loaded;
}

bool PythonRpc::isRemoteException(const py::object& object) const {
  auto* const type = reinterpret_cast<PyTypeObject*>(RemoteException.ptr());
  return PyObject_TypeCheck(object.ptr(), type) != 0;
}

bool PythonRpc::hasReducer(PyObject* type) const {
  return PyDict_Contains(reducers.ptr(), type) == 1;
}

rpc::SerializedPyObj PythonRpc::pickle(const py::object& object) const {
  const py::tuple parts = serialize(object);
  return {parts[0].cast<std::string>(), parts[1].cast<std::vector<at::Tensor>>()};
}

rpc::SerializedPyObj PythonRpc::pickled(const py::object& object) const {
  std::string problem;
  try {
    return pickle(object);
  } catch (py::error_already_set& e) {
    problem = e.what(); // the Python exception itself ends here, while the GIL is held
  }
  TORCH_CHECK(false, problem);
}

MeasuredGil::MeasuredGil() {
  if (!rpc::RpcAgent::isCurrentRpcAgentSet()) {
    return;
  }
  const auto agent = rpc::RpcAgent::getCurrentRpcAgent();
  if (agent->isGILProfilingEnabled()) {
    const auto wait = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_);
    (*agent.*pointerTo(GilWaitTime()))(wait);
  }
}

} // namespace torchwire
