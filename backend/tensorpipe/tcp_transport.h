// wire_tcp: TensorPipe's transport interface on TCP, safe against unknown peers.
#pragma once

#include <tensorpipe/transport/context.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/transport/encryption.h"
#include "backend/transport/loop.h"
#include "backend/wire/key_ring.h"

namespace torchwire {

struct TcpOptions {
  // Numeric: "host" or "host:port", IPv6 hosts in brackets if a port follows.
  std::string bindAddress;
  std::string advertiseAddress; // what others dial in its stead; empty: the bound address
  // A peer that does not answer for twice as long is taken for gone. 0: never; else at least 2 s.
  std::chrono::milliseconds keepAlive{10000};
  // While what is sent to it gets lost it is taken for gone after so long. 0: as above.
  std::chrono::milliseconds lossTimeout{0};
  Encryption encryption = Encryption::automatic;
};

/// Where a process listens for all its lanes: one TCP port.
class Endpoint;

/// Binds the port and listens. Throws std::runtime_error with a sentence when it cannot.
std::shared_ptr<Endpoint> openTcpEndpoint(
    std::shared_ptr<Loop> loop, std::shared_ptr<const KeyRing> keys, const TcpOptions& options);

/// The transport on one lane of the endpoint. Lane 0 is for pipes, the others are for channels that want
/// connections of their own. At most one listener per lane; listen() takes any address, as the port is
/// bound already. An address is "host:port", with "/lane" unless that is 0. Thread-safe.
std::shared_ptr<tensorpipe::transport::Context> makeTcpTransport(
    std::shared_ptr<Endpoint> endpoint, uint8_t lane);

} // namespace torchwire
