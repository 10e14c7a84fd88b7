// RRefs among the arguments of direct calls.
#pragma once

#include <Python.h>

#include <vector>

#include <torch/csrc/distributed/rpc/rref_impl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/base/bytes.h"

namespace torchwire {

/// Writes the RRefs of which it is known that the callee owns them, as what proxies of RRefs and RemoteModules call with: by their
/// ids alone. No fork is made and nobody is told of one, for the caller keeps its own until the call is over. With the GIL.
class DirectRRefs {
 public:
  using RRefs = std::vector<c10::intrusive_ptr<torch::distributed::rpc::RRef>>;

  explicit DirectRRefs(torch::distributed::rpc::worker_id_t callee) : callee_(callee) {}

  /// False: it is no RRef, or one that has to be pickled.
  bool write(PyObject* object, ByteWriter& out);

  /// What has been written, for the call to keep.
  RRefs take() {
    return std::move(written_);
  }

 private:
  const torch::distributed::rpc::worker_id_t callee_;
  RRefs written_;
};

/// The RRef, which this worker owns. Throws std::runtime_error if it does not. With the GIL.
pybind11::object readDirectRRef(ByteReader& in);

} // namespace torchwire
