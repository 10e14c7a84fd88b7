#include "autograd/engine.h"

#include <ATen/record_function.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/call_error.h"
#include "backend/base/thread_pool.h"
#include "backend/serve/signals.h"

namespace torchwire {
namespace {

// How often a thread that waits for a pass looks whether a signal has come.
constexpr std::chrono::milliseconds kLook{50};

} // namespace

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
  std::future<void> end = over->get_future();
  const ThreadPool::BlockingScope blocking;
  while (handlesSignals() && end.wait_for(kLook) != std::future_status::ready) {
    if (runSignalHandlers()) {
      cancel(contextId);
      throw CallError(Error(
          ErrorCode::cancelled,
          "the backward pass of autograd context " + std::to_string(contextId) + " was cancelled"));
    }
  }
  end.get();
}

} // namespace torchwire
