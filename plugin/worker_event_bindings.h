// What torchwire/worker_events.py hears of other workers.
#pragma once

#include "backend/agent/worker_events.h"

namespace torchwire {

/// They take the GIL.
WorkerEvents pythonsWorkerEvents();

} // namespace torchwire
