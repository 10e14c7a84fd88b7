#include "backend/thread_role.h"

#include <utility>

namespace torchwire {
namespace {

thread_local ThreadRole role = ThreadRole::free;

} // namespace

SendScope::SendScope() : outer_(std::exchange(role, ThreadRole::sending)) {}
SendScope::~SendScope() {
  role = outer_;
}

DeliverScope::DeliverScope() : outer_(std::exchange(role, ThreadRole::delivering)) {}
DeliverScope::~DeliverScope() {
  role = outer_;
}

bool isSending() {
  return role == ThreadRole::sending;
}

bool isFree() {
  return role == ThreadRole::free;
}

void expectFree(const char* /*action*/) {}

} // namespace torchwire
