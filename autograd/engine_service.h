// What an engine does at the request of others.
#pragma once

#include "autograd/pass/pass_table.h"
#include "autograd/pass_trace.h"
#include "backend/serve/dispatcher.h"

namespace torchwire {

/// Registers the handlers of the requests between engines (own_messages.h). They run on the thread that takes the
/// request, one of the pool's. Both `passes` and `trace` must
/// live while requests come.
void serveEngines(Dispatcher& dispatcher, PassTable& passes, const PassTrace& trace);

} // namespace torchwire
