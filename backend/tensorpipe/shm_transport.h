// wire_shm: TensorPipe's transport interface on shared memory, for peers on one host.
#pragma once

#include <tensorpipe/transport/context.h>

#include <memory>

#include "backend/transport/loop.h"
#include "backend/wire/key_ring.h"

namespace torchwire {

/// Connections are set up over an abstract Unix socket, where both ends prove that they know the key and
/// that they run as the same user; then bytes travel in two rings in a sealed memory file. The socket
/// stays, to wake a sleeper and as the sign of life.
///
/// listen() takes any address: the name is drawn, see Listener::addr(). At most one listener.
/// Throws std::runtime_error where memory files or abstract sockets are not to be had. Thread-safe.
std::shared_ptr<tensorpipe::transport::Context> makeShmTransport(
    std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys);

} // namespace torchwire
