#include "backend/serve/python_value.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <utility>

#include "backend/serve/python_rpc.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

rpc::SerializedPyObj serializePython(at::IValue value) {
  const MeasuredGil gil; // also for the destructor of what toPyObject returns
  return PythonRpc::get().pickled(torch::jit::toPyObject(std::move(value)));
}

} // namespace torchwire
