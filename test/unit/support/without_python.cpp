// What of backend/serve needs an interpreter, for programs that have none.

#include <stdexcept>

#include "backend/serve/python_value.h"

namespace torchwire {

torch::distributed::rpc::SerializedPyObj serializePython(at::IValue) {
  throw std::runtime_error("there is no Python here");
}

} // namespace torchwire
