// What PyTorch knows of the type of an RRef's value, for which the RRef's proxies ask.
#pragma once

#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/base/private_member.h"

namespace torchwire {

struct RRefType { // a Python type, or the future of one
  friend auto pointerTo(RRefType);
};
template struct PrivateMember<RRefType, &torch::distributed::rpc::PyRRef::type_>;

/// PyTorch keeps the future of the type with the RRef, also where it has failed: every later use of a proxy would fail with
/// it, though only the first was interrupted or has timed out, and the traceback of its error may keep the RRef. So it is let
/// go, and the type asked for anew. With the GIL.
void forgetFailedType(torch::distributed::rpc::PyRRef& rref);

} // namespace torchwire
