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

/// The future of it. PyTorch keeps that with the RRef, also where it has failed: every later use of a proxy would fail with it,
/// though only the first was interrupted or has timed out. So one that has failed is let go, and the type asked for anew.
/// With the GIL.
pybind11::object futureTypeOf(torch::distributed::rpc::PyRRef& rref, float timeout);

/// The type, which is waited for. With the GIL.
pybind11::object typeOf(torch::distributed::rpc::PyRRef& rref, float timeout);

} // namespace torchwire
