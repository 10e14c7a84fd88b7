// A backward pass whose root is the value of an RRef.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <cstdint>

#include "autograd/engine.h"

namespace torchwire::rref {

/// Stands for "no context": an ordinary backward pass of the owner alone.
constexpr int64_t kNoContext = -1;

/// RRef.backward on this worker: runs the pass where it is the owner, has the owner run it where it is a user, and
/// waits for its end. Throws what the pass failed with. Call it without the GIL. Thread-safe.
void backward(
    Engine& engine,
    torch::distributed::rpc::RpcAgent& agent,
    const c10::intrusive_ptr<torch::distributed::rpc::RRef>& rref,
    int64_t contextId,
    bool retainGraph);

/// The owner's half: starts the pass with `value`, what the RRef refers to, and calls `done` once it is over, perhaps
/// before it returns. Does not throw. Takes the GIL when the value is a Python object. Thread-safe.
void startOnOwner(
    Engine& engine, const c10::IValue& value, int64_t contextId, bool retainGraph, Engine::Done done);

} // namespace torchwire::rref
