// Python objects on their way into a response.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/rpc/types.h>

namespace torchwire {

/// The value, pickled. Takes the GIL. Throws c10::Error with Python's text when it cannot be pickled.
torch::distributed::rpc::SerializedPyObj serializePython(at::IValue value);

} // namespace torchwire
