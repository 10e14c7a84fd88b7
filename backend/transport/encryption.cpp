#include "backend/transport/encryption.h"

#include "backend/transport/socket_address.h"

namespace torchwire {

Sealing sealingOf(Encryption encryption, int socket) {
  switch (encryption) {
    case Encryption::off:
      return Sealing::off;
    case Encryption::on:
      return Sealing::wanted;
    case Encryption::automatic:
      break;
  }
  // From one address to the same: within this host, over loopback, whatever the interface (127.0.0.1, its own address).
  const bool isWithinHost =
      SocketAddress::ofSocket(socket).host() == SocketAddress::ofPeer(socket).host();
  return isWithinHost ? Sealing::ifWanted : Sealing::wanted;
}

} // namespace torchwire
