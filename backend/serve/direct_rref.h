// RRefs among the arguments of direct calls.
#pragma once

#include <Python.h>

#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/rpc/rref_impl.h>
#include <torch/csrc/utils/pybind.h>

#include "backend/base/bytes.h"

namespace torchwire {

/// Keeps this worker's RRefs while it lives, as libtorch keeps those that have been passed on and are not confirmed: a
/// graceful shutdown waits for them, and does not delete them before. Destroyed on a thread that may send, without locks.
class KeptRRefs {
 public:
  KeptRRefs() = default;
  ~KeptRRefs();
  KeptRRefs(const KeptRRefs&) = delete;
  KeptRRefs& operator=(const KeptRRefs&) = delete;

  void add(const c10::intrusive_ptr<torch::distributed::rpc::RRef>& user);

 private:
  std::vector<torch::distributed::rpc::ForkId> ids_;
};

/// Writes the RRefs that the callee is known to own, such as those in calls by proxy, as their ids alone. No fork is made
/// and nobody is told of one, since the call keeps the caller's own until it is over. With the GIL.
class DirectRRefs {
 public:
  /// Throws for an RRef that is not to be sent.
  using Check = void (*)(const torch::distributed::rpc::RRef& rref);

  DirectRRefs(torch::distributed::rpc::worker_id_t callee, Check check)
      : callee_(callee), check_(check) {}

  /// False: it is no RRef, or one that has to be pickled. Throws what the check throws.
  bool write(PyObject* object, ByteWriter& out);

  /// What has been written, for the call to keep; null if nothing.
  std::shared_ptr<KeptRRefs> take() {
    return std::move(kept_);
  }

 private:
  const torch::distributed::rpc::worker_id_t callee_;
  const Check check_;
  std::shared_ptr<KeptRRefs> kept_;
};

/// The RRef, which this worker owns. Throws std::runtime_error if it does not. With the GIL.
pybind11::object readDirectRRef(ByteReader& in);

} // namespace torchwire
