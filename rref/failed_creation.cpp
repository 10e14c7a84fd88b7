#include "rref/failed_creation.h"

#include <torch/csrc/distributed/rpc/utils.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "backend/base/call_error.h"
#include "rref/private_members.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;

} // namespace

void keepErrorHandlersValid() {
  static const auto* const never_freed = [] { // NOLINT(cppcoreguidelines-owning-memory)
    auto* rref = new c10::intrusive_ptr<rpc::OwnerRRef>(c10::make_intrusive<rpc::OwnerRRef>(
        rpc::worker_id_t{0}, rpc::RRefId(0, 0), at::AnyType::get(), std::vector<c10::Device>()));
    (*rref)->handleError(
        rpc::RPCErrorType::TIMEOUT, *c10::make_intrusive<rpc::JitFuture>(at::AnyType::get()));
    return rref;
  }();
  static_cast<void>(never_freed);
}

void setCreationFailed(rpc::RRef& rref, const rpc::JitFuture& creation) {
  rref.*pointerTo(RRefTimedOut()) = true;
  if (rref.isOwner() && !static_cast<rpc::OwnerRRef&>(rref).hasValue()) {
    const std::string text = "RRef creation via rpc.remote() failed on this worker, its owner: " +
        creation.tryRetrieveErrorMessage();
    const auto failed = callErrorIn(creation.exception_ptr());
    static_cast<rpc::OwnerRRef&>(rref).setError(
        failed ? exceptionOf(failed->saying(text))
               : std::make_exception_ptr(std::runtime_error(text)));
  }
}

void markIfNotCreated(rpc::RRef& rref) {
  const auto creation = rref.isOwner() ? nullptr : rref.getOwnerCreationFuture();
  if (creation && creation->hasError()) {
    setCreationFailed(rref, *creation);
  }
}

void throwCreationError(const rpc::RRef& rref, const std::string& text) {
  const auto creation = rref.getOwnerCreationFuture();
  if (creation && creation->hasError()) {
    if (const auto failed = callErrorIn(creation->exception_ptr())) {
      throw CallError(failed->saying(text + " Its creation failed: " + failed->message()));
    }
  }
}

} // namespace torchwire
