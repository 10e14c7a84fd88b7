// The callee's side of a call that carries an autograd context.
#pragma once

#include "backend/serve/dispatcher.h"

namespace torchwire {

/// Serves FORWARD_AUTOGRAD_REQ: attaches a recv function to the tensors that came, runs the call that is
/// wrapped as a part of the caller's context, and attaches a send function to the tensors that go back.
c10::intrusive_ptr<Dispatcher::JitFuture> forwardCall(
    const Dispatcher& dispatcher, WorkerId caller, Dispatcher::RpcCommandBase& command);

} // namespace torchwire
