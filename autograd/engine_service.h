// What an engine does at the request of others.
#pragma once

#include "autograd/backward_trace.h"
#include "autograd/pass/pass_table.h"
#include "backend/serve/dispatcher.h"

namespace torchwire {

/// Registers the handlers of the requests between engines (own_messages.h). They run on the thread that takes the
/// request, one of the pool's. Both `passes` and `trace` must
/// live while requests come.
void serveEngines(Dispatcher& dispatcher, PassTable& passes, const BackwardTrace& trace);

} // namespace torchwire
