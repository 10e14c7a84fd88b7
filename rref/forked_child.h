// RRefs in a process that was forked from a worker.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>

namespace torchwire {

/// Leaves all RRefs of libtorch's RRefContext to the parent: nothing is sent for copies of them that are dropped here, and
/// what else would be sent goes by `refusing`. To be called in the child by its only thread: another one may have held the
/// context's locks when it was forked, so these are begun anew.
void leaveRRefsToParent(const std::shared_ptr<torch::distributed::rpc::RpcAgent>& refusing);

} // namespace torchwire
