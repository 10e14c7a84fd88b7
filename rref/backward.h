// A backward pass whose root is the value of an RRef.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/rref_impl.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "autograd/engine.h"
#include "backend/serve/dispatcher.h"
#include "rref/rref_service.h"

namespace torchwire::rref {

/// Stands for "no context": an ordinary backward pass of the owner alone.
constexpr int64_t kNoContext = -1;

/// Sends a request to an RRef's owner, and waits for the answer.
using Ask = std::function<void(c10::intrusive_ptr<torch::distributed::rpc::Message> request)>;

/// RRef.backward on this worker: runs the pass where it is the owner, has the owner run it where it is a user, and
/// waits for its end. Throws what the pass failed with.
/// Call it without the GIL. Thread-safe.
void backward(
    Engine& engine, const Ask& ask, const c10::intrusive_ptr<torch::distributed::rpc::RRef>& rref,
    int64_t contextId, bool retainGraph);

/// Registers the handler of RREF_BACKWARD_REQ, by which a user has this worker, the owner, run the pass. It occupies no
/// thread while the RRef has no value yet, or while other workers have their part in the pass.
void serveBackward(
    Dispatcher& dispatcher, const std::weak_ptr<Engine>& engine,
    const std::shared_ptr<RRefService>& rrefs);

} // namespace torchwire::rref
