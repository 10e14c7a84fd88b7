#include "autograd/engine.h"

#include <ATen/record_function.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <future>
#include <memory>
#include <vector>

#include "cuda/streams.h"

namespace torchwire {

void Engine::backward(
    int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph) {
  // As libtorch's profile of a pass calls it.
  RECORD_FUNCTION("torch::distributed::autograd::backward", std::vector<c10::IValue>());
  // Shared, because whoever sets it may still be at it when this thread goes on.
  const auto over = std::make_shared<std::promise<void>>();
  start(contextId, roots, retainGraph, [over](const std::exception_ptr& error) {
    error ? over->set_exception(error) : over->set_value();
  });
  over->get_future().get();
  cuda::putCurrentBehindDefaults(
      torch::distributed::rpc::RpcAgent::getCurrentRpcAgent()->getDevices());
}

} // namespace torchwire
