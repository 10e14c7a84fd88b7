#include "rref/forked_child.h"

#include <memory>

#include "rref/private_members.h"

namespace torchwire {

void leaveRRefsToParent(const std::shared_ptr<torch::distributed::rpc::RpcAgent>& refusing) {
  using Agent = std::shared_ptr<torch::distributed::rpc::RpcAgent>;
  auto& context = libtorch::RRefContext::getInstance();
  std::construct_at(&(context.*pointerTo(RRefLock())));
  std::construct_at(&(context.*pointerTo(RRefsDestroyedLock())));
  context.*pointerTo(RRefsDestroyed()) = true;
  // The parent's agent keeps this reference, so that it is never destroyed here: its destructor waits for its threads.
  std::construct_at(const_cast<Agent*>(&(context.*pointerTo(RRefAgent()))), refusing); // NOLINT
}

} // namespace torchwire
