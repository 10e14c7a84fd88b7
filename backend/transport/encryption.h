// Which TCP connections are to be sealed.
#pragma once

#include <cstdint>

#include "backend/transport/authentication.h"

namespace torchwire {

/// The option `encryption`.
enum class Encryption : uint8_t {
  off,
  automatic, // all but those within this host, of which the kernel lets nobody read who could not read the process
  on,
};

/// Of a connected TCP socket. Both ends of one come to the same under `automatic`.
Sealing sealingOf(Encryption encryption, int socket);

} // namespace torchwire
