// A creation whose request has failed at the RRef's creator, and does not come to its owner.
#pragma once

#include <torch/csrc/distributed/rpc/rref_context.h>

namespace torchwire {

/// Has the owner fail the creation, if that is lost and the owner goes on: those who have got the RRef from its
/// creator may wait for its value, and so may a fetch of the creator's. `creation`: the future of the creator's call, which
/// has failed. Thread-safe; does not wait.
void tellOwnerIfLost(
    torch::distributed::rpc::RRefContext& context, const torch::distributed::rpc::UserRRef& user,
    const torch::distributed::rpc::JitFuture& creation);

} // namespace torchwire
