// The first half of RRefContext's end.
#pragma once

namespace torchwire {

/// RRefContext::destroyInstance takes three steps: from now on nothing is sent for RRefs that are dropped; what is left
/// is listed; the owners are dropped. The last two go through the context's tables without their lock, and PyTorch calls
/// it while the agent still serves: a fork that comes or goes meanwhile corrupts the heap.
///
/// This takes the first step alone. The agent can end after it, and destroyInstance come when no thread of the agent is
/// left. Thread-safe; may be called again. Takes a mutex that libtorch holds while it sends, so not from a send.
void endDeletesOfRRefs();

} // namespace torchwire
