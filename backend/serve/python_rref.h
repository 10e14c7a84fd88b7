// RRefs as Python holds them.
#pragma once

#include <torch/csrc/distributed/rpc/py_rref.h>

namespace torchwire {

/// The RRef itself.
inline c10::intrusive_ptr<torch::distributed::rpc::RRef> rrefIn(
    const torch::distributed::rpc::PyRRef& python) {
  return c10::static_intrusive_pointer_cast<torch::distributed::rpc::RRef>(
      python.toIValue().toRRef());
}

} // namespace torchwire
