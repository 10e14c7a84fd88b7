// Futures of response messages.
#pragma once

#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/rpc/message.h>

#include <tuple>
#include <utility>
#include <vector>

#include "backend/base/lock_rank.h"
#include "backend/base/thread_role.h"

namespace torchwire {

/// What a callback of Future::then returns. libtorch's own handlers list the storages of a message's tensors
/// there, for the CUDA streams that read them; tensors on the CPU need none, and asking one for its storage
/// fails for the layouts that have none (CSR, CSC, BSR, BSC).
using ValueWithStorages =
    std::tuple<at::IValue, std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>>;

inline ValueWithStorages withoutStorages(
    c10::intrusive_ptr<torch::distributed::rpc::Message> message) {
  return {at::IValue(std::move(message)), {}};
}

/// The type of a future that holds a message.
inline at::TypePtr messageType() {
  return c10::getCustomClassType<c10::intrusive_ptr<torch::distributed::rpc::Message>>();
}

/// A message that carries no tensors.
inline c10::intrusive_ptr<torch::distributed::rpc::Message> messageOf(
    std::vector<char> body, torch::distributed::rpc::MessageType type) {
  return c10::make_intrusive<torch::distributed::rpc::Message>(
      std::move(body), std::vector<at::Tensor>(), type);
}

/// The payload in a future of messageType() that has completed without an error.
inline const std::vector<char>& bodyOf(const torch::distributed::rpc::JitFuture& future) {
  return std::as_const(*future.constValue().toCustomClass<torch::distributed::rpc::Message>())
      .payload();
}

/// Completes a future, and runs its callbacks, which may be the user's.
inline void complete(torch::distributed::rpc::JitFuture& future, at::IValue value) {
  expectFree("completing a future");
  expectUnlocked("completing a future");
  future.markCompleted(std::move(value), std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>());
}

/// Completes a future of messageType().
inline void complete(
    torch::distributed::rpc::JitFuture& future,
    c10::intrusive_ptr<torch::distributed::rpc::Message> message) {
  complete(future, at::IValue(std::move(message)));
}

/// A future that is complete.
inline c10::intrusive_ptr<torch::distributed::rpc::JitFuture> completed(
    c10::intrusive_ptr<torch::distributed::rpc::Message> message) {
  auto future = c10::make_intrusive<torch::distributed::rpc::JitFuture>(messageType());
  complete(*future, std::move(message));
  return future;
}

} // namespace torchwire
