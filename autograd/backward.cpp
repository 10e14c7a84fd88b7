#include "autograd/backward.h"

#include <torch/csrc/distributed/autograd/autograd.h>

#include "backend/agent/agent.h"

namespace torchwire {

void backward(int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph) {
  // Held until the pass is over: a shutdown in another thread must not take the engine away under it.
  if (const auto agent = Agent::current()) {
    agent->engine().backward(contextId, roots, retainGraph);
  } else {
    torch::distributed::autograd::backward(contextId, roots, retainGraph);
  }
}

} // namespace torchwire
