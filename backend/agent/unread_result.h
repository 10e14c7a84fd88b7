// Results that nobody waits for any more.
#pragma once

#include <torch/csrc/distributed/rpc/message.h>

#include <cstdint>

namespace torchwire {

/// Whether a response of the type may carry RRefs.
bool mayCarryRRefs(uint32_t messageType);

/// Receives and drops the RRefs in a response of such a type, so that their owners learn that this worker does not hold them.
/// Takes the GIL, and calls owners. Those in a response that cannot be read stay, which the log says.
void dropRRefsIn(const torch::distributed::rpc::Message& response);

} // namespace torchwire
