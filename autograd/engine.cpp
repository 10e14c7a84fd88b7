#include "autograd/engine.h"

#include <ATen/record_function.h>

#include <future>
#include <memory>
#include <vector>

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
  // libtorch's GraphTask has put the streams that are current here behind the gradients.
  over->get_future().get();
}

} // namespace torchwire
