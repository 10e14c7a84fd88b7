// The callee's side of a call whose caller profiles.
#pragma once

#include "backend/serve/dispatcher.h"

namespace torchwire {

/// Registers the handler of RUN_WITH_PROFILING_REQ: it runs the call that is wrapped under the profiler, and adds what
/// the profiler saw to its response.
void serveProfiledCalls(Dispatcher& dispatcher);

} // namespace torchwire
