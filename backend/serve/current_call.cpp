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

ServingScope* ServingScope::here() {
  return innermost != nullptr && innermost->generation_ == forkGeneration() ? innermost : nullptr;
}

bool ServingScope::isCancelled() {
  const auto* const scope = here();
  return scope != nullptr && scope->cancelled_ &&
      scope->cancelled_->contains(scope->request_.caller, scope->request_.callId);
}

void ServingScope::noteRRef(uint64_t hash) {
  const auto* const scope = here();
  if (scope != nullptr && scope->rref_ != nullptr) {
    scope->rref_->store(hash, std::memory_order_relaxed);
  }
}

void ServingScope::countError() {
  auto* const scope = here();
  if (scope != nullptr && !std::exchange(scope->isCounted_, true)) {
    scope->request_.countError();
  }
}

void ServingScope::countError(const ServedCalls::Request& request) {
  const auto* const scope = here();
  if (scope != nullptr && scope->request_ == request) {
    countError();
  } else {
    request.countError();
  }
}

ServedCall ServingScope::current() {
  const auto* const scope = here();
  return scope == nullptr ? ServedCall()
                          : ServedCall(scope->request_, scope->arrival_, scope->cancelled_);
}

WatchedCall ServingScope::watch() {
  const auto* const scope = here();
  if (scope == nullptr || !scope->cancelled_) {
    return {};
  }
  const auto& [caller, callId, function] = scope->request_;
  return {caller, scope->cancelled_->watch(caller, callId, scope->arrival_)};
}

} // namespace torchwire
