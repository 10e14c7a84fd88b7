// The callee's side of a call whose caller profiles.
#pragma once

#include "backend/serve/dispatcher.h"

namespace torchwire {

/// Serves RUN_WITH_PROFILING_REQ: runs the call that is wrapped under the profiler, and adds what the
/// profiler saw to its response.
c10::intrusive_ptr<Dispatcher::JitFuture> profiledCall(
    const Dispatcher& dispatcher, WorkerId caller, Dispatcher::RpcCommandBase& command);

} // namespace torchwire
