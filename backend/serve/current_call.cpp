#include "backend/serve/current_call.h"

#include <utility>

namespace torchwire {
namespace {

thread_local const ServingScope* innermost = nullptr;

} // namespace

ServingScope::ServingScope(
    WorkerId caller, uint64_t id, CancelledCalls::Moment arrival,
    const std::shared_ptr<CancelledCalls>& cancelled)
    : caller_(caller),
      id_(id),
      arrival_(arrival),
      cancelled_(cancelled),
      outer_(std::exchange(innermost, this)) {}

ServingScope::~ServingScope() {
  innermost = outer_;
}

bool ServingScope::isCancelled() {
  return innermost != nullptr && innermost->cancelled_ &&
      innermost->cancelled_->contains(innermost->caller_, innermost->id_);
}

ServedCall ServingScope::current() {
  return innermost == nullptr
      ? ServedCall()
      : ServedCall(innermost->caller_, innermost->id_, innermost->arrival_, innermost->cancelled_);
}

WatchedCall ServingScope::watch() {
  if (innermost == nullptr || !innermost->cancelled_) {
    return {};
  }
  return {
      innermost->caller_,
      innermost->cancelled_->watch(innermost->caller_, innermost->id_, innermost->arrival_)};
}

} // namespace torchwire
