// Whether anybody listens at a TCP address.
#pragma once

#include <chrono>
#include <string>

namespace torchwire {

/// True if the address's host says, each time it is asked for `patience`, that nobody listens there: for a moment that
/// may be a process that is just starting. False where somebody does, or the host does not answer. Blocks, a silent host's
/// 2 s at most. Throws std::runtime_error for what is no numeric address with a port.
bool nobodyListensAt(
    const std::string& address,
    std::chrono::milliseconds patience = std::chrono::milliseconds(200));

} // namespace torchwire
