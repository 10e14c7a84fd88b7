// Futures of response messages.
#pragma once

#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/distributed/rpc/message.h>

#include <tuple>
#include <utility>
#include <vector>

#include "backend/base/lock_rank.h"
#include "backend/base/thread_role.h"
#include "cuda/streams.h"

namespace torchwire {

/// What a callback of Future::then returns. The storages are those of a message's tensors on devices: who uses the value
/// waits for the streams that fill them.
using ValueWithStorages = std::tuple<at::IValue, cuda::Storages>;

inline ValueWithStorages withDeviceStorages(
    c10::intrusive_ptr<torch::distributed::rpc::Message> message) {
  auto storages = cuda::deviceStorages(std::as_const(*message).tensors());
  return {at::IValue(std::move(message)), std::move(storages)};
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

/// Completes a future, and runs its callbacks, which may be the user's. `storages`: those of the value on devices, which
/// this thread's current streams fill.
inline void complete(
    torch::distributed::rpc::JitFuture& future, at::IValue value, cuda::Storages storages = {}) {
  expectFree("completing a future");
  expectUnlocked("completing a future");
  future.markCompleted(std::move(value), std::move(storages));
}

/// Completes a future of messageType().
inline void complete(
    torch::distributed::rpc::JitFuture& future,
    c10::intrusive_ptr<torch::distributed::rpc::Message> message) {
  auto storages = cuda::deviceStorages(std::as_const(*message).tensors());
  complete(future, at::IValue(std::move(message)), std::move(storages));
}

/// A future that is complete.
inline c10::intrusive_ptr<torch::distributed::rpc::JitFuture> completed(
    c10::intrusive_ptr<torch::distributed::rpc::Message> message) {
  auto future = c10::make_intrusive<torch::distributed::rpc::JitFuture>(
      messageType(), cuda::acceleratorsOf(std::as_const(*message).tensors()));
  complete(*future, std::move(message));
  return future;
}

} // namespace torchwire
