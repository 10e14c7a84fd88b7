#include "autograd/libtorch_engine.h"

#include <torch/csrc/distributed/autograd/engine/dist_engine.h>

#include <future>
#include <memory>

namespace torchwire {

void LibtorchEngine::start(
    int64_t contextId,
    const torch::autograd::variable_list& roots,
    bool retainGraph,
    Done done) {
  ++started_;
  std::exception_ptr error;
  try {
    torch::distributed::autograd::DistEngine::getInstance().execute(contextId, roots, retainGraph);
  } catch (...) {
    error = std::current_exception();
  }
  done(error);
}

void Engine::backward(
    int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph) {
  // Shared, because setting it goes on for a moment after the waiting thread has woken.
  const auto over = std::make_shared<std::promise<void>>();
  start(contextId, roots, retainGraph, [over](const std::exception_ptr& error) {
    error ? over->set_exception(error) : over->set_value();
  });
  over->get_future().get();
}

} // namespace torchwire
