#include "autograd/backward.h"

#include <torch/csrc/distributed/autograd/autograd.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <memory>

#include "autograd/engine.h"

namespace torchwire {
namespace {

using torch::distributed::rpc::RpcAgent;

/// The current agent, if it is one with an engine.
std::shared_ptr<EngineOwner> currentOwner() {
  return RpcAgent::isCurrentRpcAgentSet()
      ? std::dynamic_pointer_cast<EngineOwner>(RpcAgent::getCurrentRpcAgent())
      : nullptr;
}

} // namespace

void backward(int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph) {
  // Held until the pass is over: a shutdown in another thread must not take the engine away under it.
  if (const auto agent = currentOwner()) {
    agent->engine().backward(contextId, roots, retainGraph);
  } else {
    torch::distributed::autograd::backward(contextId, roots, retainGraph);
  }
}

} // namespace torchwire
