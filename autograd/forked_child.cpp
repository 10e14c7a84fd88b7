#include "autograd/forked_child.h"

#include <memory>

#include "autograd/private_members.h"

namespace torchwire {

void freeContainerLocks() {
  using torch::distributed::autograd::DistAutogradContainer;
  try {
    for (auto& shard : DistAutogradContainer::getInstance().*pointerTo(ContainerShards())) {
      std::construct_at(&shard.lock);
    }
  } catch (
      const c10::Error&) { // init_rpc makes it; a program that starts an agent by itself has none
  }
}

} // namespace torchwire
