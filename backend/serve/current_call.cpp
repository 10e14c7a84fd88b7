#include "backend/serve/current_call.h"

#include <utility>

namespace torchwire {
namespace {

thread_local ServingScope* innermost = nullptr;

} // namespace

TraceLog::Note ServedCall::note(TraceLog::Note::Kind kind) const {
  TraceLog::Note note;
  note.kind = kind;
  note.peer = request_.caller;
  note.callId = request_.callId;
  return note;
}

ServingScope::ServingScope(
    const ServedCalls::Request& request, CancelledCalls::Moment arrival,
    const std::shared_ptr<CancelledCalls>& cancelled, std::atomic<uint64_t>* rref)
    : request_(request),
      arrival_(arrival),
      cancelled_(cancelled),
      rref_(rref),
      outer_(std::exchange(innermost, this)) {}

ServingScope::~ServingScope() {
  innermost = outer_;
}

bool ServingScope::isCancelled() {
  return innermost != nullptr && innermost->cancelled_ &&
      innermost->cancelled_->contains(innermost->request_.caller, innermost->request_.callId);
}

void ServingScope::noteRRef(uint64_t hash) {
  if (innermost != nullptr && innermost->rref_ != nullptr) {
    innermost->rref_->store(hash, std::memory_order_relaxed);
  }
}

void ServingScope::countError() {
  if (innermost != nullptr && !std::exchange(innermost->isCounted_, true)) {
    innermost->request_.countError();
  }
}

void ServingScope::countError(const ServedCalls::Request& request) {
  if (innermost != nullptr && innermost->request_ == request) {
    countError();
  } else {
    request.countError();
  }
}

ServedCall ServingScope::current() {
  return innermost == nullptr
      ? ServedCall()
      : ServedCall(innermost->request_, innermost->arrival_, innermost->cancelled_);
}

WatchedCall ServingScope::watch() {
  if (innermost == nullptr || !innermost->cancelled_) {
    return {};
  }
  const auto& [caller, callId, function] = innermost->request_;
  return {caller, innermost->cancelled_->watch(caller, callId, innermost->arrival_)};
}

} // namespace torchwire
