// Distributed autograd in a process that was forked from a worker.
#pragma once

namespace torchwire {

/// Has the locks of libtorch's container free. To be called in the child by its only thread: another one may have held
/// them when it was forked. The contexts stay, so that a block that has one open can be left.
void freeContainerLocks();

} // namespace torchwire
