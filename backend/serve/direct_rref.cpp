#include "backend/serve/direct_rref.h"

#include <torch/csrc/distributed/rpc/py_rref.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/serve/python_rpc.h"
#include "backend/serve/python_rref.h"
#include "backend/serve/rref_type.h"

namespace torchwire {

namespace {

namespace py = pybind11;
namespace rpc = torch::distributed::rpc;

/// An RRef that is pickled as PyTorch does it: of neither a subclass nor a class with a reducer of the user's.
bool isPlainRRef(PyObject* object) {
  const auto& python = PythonRpc::get();
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return (type == python.PyRRef.ptr() || type == python.RRef.ptr()) && !python.hasReducer(type);
}

bool hasSucceeded(const rpc::JitFuture& future) {
  return future.completed() && !future.hasError();
}

/// Whether the owner has made its RRef. That it has confirmed this one does not say so: it may have heard of an RRef that
/// was passed on before it hears of that RRef's creation. But an answer to the creation does, and one that tells the type
/// of the value, for which a proxy asks.
bool existsOnOwner(const rpc::PyRRef& python, const rpc::RRef& rref) {
  if (const auto creation = rref.getOwnerCreationFuture()) {
    return hasSucceeded(*creation);
  }
  const std::optional<py::object>& type = python.*pointerTo(RRefType());
  if (!type || !py::isinstance<torch::jit::PythonFutureWrapper>(*type)) {
    return type.has_value();
  }
  return hasSucceeded(*type->cast<const torch::jit::PythonFutureWrapper&>().fut);
}

c10::intrusive_ptr<rpc::RRef> ownedRRef(const rpc::RRefId& id) {
  try {
    const auto owner = rpc::RRefContext::getInstance().getOwnerRRef(id, /* forceCreated */ true);
    return rpc::fromRRefInterface(owner->constValue().toRRef());
  } catch (const c10::Error&) {
    std::ostringstream text;
    text << "the call has been given an RRef, " << id
         << ", which this worker does not own any more: its last user has dropped it, as a caller "
            "does whose "
            "call has timed out";
    throw std::runtime_error(text.str());
  }
}

} // namespace

void KeptRRefs::add(const c10::intrusive_ptr<rpc::RRef>& user) {
  auto& context = rpc::RRefContext::getInstance();
  ids_.push_back(context.genGloballyUniqueId());
  context.addPendingChild(ids_.back(), user);
}

KeptRRefs::~KeptRRefs() {
  for (const rpc::ForkId& id : ids_) {
    guarded("giving up an RRef", [&] { rpc::RRefContext::getInstance().delPendingChild(id); });
  }
}

bool DirectRRefs::write(PyObject* object, ByteWriter& out) {
  if (!isPlainRRef(object)) {
    return false;
  }
  const auto& python = py::handle(object).cast<const rpc::PyRRef&>();
  const auto rref = rrefIn(python);
  if (rref->isOwner() || rref->owner() != callee_ || !existsOnOwner(python, *rref)) {
    return false;
  }
  check_(*rref);
  out.number(rref->rrefId().createdOn_);
  out.number(rref->rrefId().localId_);
  if (!kept_) {
    kept_ = std::make_shared<KeptRRefs>();
  }
  kept_->add(rref);
  return true;
}

py::object readDirectRRef(ByteReader& in) {
  const auto createdOn = in.number<rpc::worker_id_t>();
  const auto localId = in.number<rpc::local_id_t>();
  return py::cast(rpc::PyRRef(ownedRRef(rpc::RRefId(createdOn, localId))));
}

} // namespace torchwire
