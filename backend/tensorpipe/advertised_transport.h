// A TensorPipe transport that tells its peers another address than the one that it listens on.
#pragma once

#include <tensorpipe/transport/context.h>

#include <memory>
#include <string>

namespace torchwire {

/// Wraps a transport on IP addresses. Its listeners report `host` in the place of the host that they are
/// bound to, and `host`'s port, if it has one, in the place of theirs. In the handshake of a pipe TensorPipe
/// tells the dialer where to open further connections; behind a NAT or with 0.0.0.0 that has to be the
/// address that others see. Thread-safe.
std::shared_ptr<tensorpipe::transport::Context> advertise(
    std::shared_ptr<tensorpipe::transport::Context> transport, std::string host);

} // namespace torchwire
