// Futures that know their calls.
#pragma once

#include <torch/csrc/jit/python/pybind_utils.h>

#include <cstdint>
#include <memory>

namespace torchwire {

class Agent;

/// What an instance of Python's CallFuture holds.
struct CallFuture : torch::jit::PythonFutureWrapper {
  using Future = c10::ivalue::Future;

  static constexpr uint64_t kEnded = 0; // in the place of the id of a call that has: no call has it

  /// `creation`: of an RRef, that the call completes, and which completes this one; null: the call completes this one.
  CallFuture(
      c10::intrusive_ptr<Future> future, std::weak_ptr<Agent> agent, uint64_t callId,
      const c10::intrusive_ptr<Future>& creation = {});

  const std::weak_ptr<Agent> agent;
  const uint64_t callId;
  const bool isCreation;
  const c10::weak_intrusive_ptr<Future> creation;
};

/// Has all of them be instances of this class, which inherits from torch.futures.Future. With the GIL.
void setCallFutureClass(const pybind11::type& type);

/// The future as Python has it: its only instance, which callbacks get, too, where the program has kept it. With the GIL.
pybind11::object instanceOf(std::shared_ptr<CallFuture> future);

/// What the instance holds; null for any other object. With the GIL.
CallFuture* callFutureIn(pybind11::handle object);

} // namespace torchwire
