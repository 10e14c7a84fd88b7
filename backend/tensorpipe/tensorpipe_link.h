// Links that are TensorPipe pipes.
#pragma once

#include <memory>

#include "backend/base/buffer_pool.h"
#include "backend/link/link.h"
#include "backend/tensorpipe/callback_relay.h"

namespace tensorpipe {
class Pipe;
}

namespace torchwire {

/// Receives large tensors into `buffers`. Closes its pipe when it goes. Its callbacks are called on loops only: never in the midst of a send, be it of this
/// link or of another of the same context, and never inside the call that took them. Thread-safe.
std::shared_ptr<Link> makeTensorPipeLink(
    std::shared_ptr<tensorpipe::Pipe> pipe, std::shared_ptr<CallbackRelay> relay,
    std::shared_ptr<BufferPool> buffers);

} // namespace torchwire
