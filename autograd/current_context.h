// The autograd context of what a thread runs.
#pragma once

#include <torch/csrc/distributed/autograd/context/container.h>

#include <cstdint>

namespace torchwire {

/// Makes a context the thread's current one, and puts back what was current before.
class CurrentContext {
 public:
  explicit CurrentContext(int64_t id)
      : before_(torch::distributed::autograd::DistAutogradContainer::currentContextId()) {
    torch::distributed::autograd::DistAutogradContainer::forceCurrentContextId(id);
  }
  ~CurrentContext() {
    torch::distributed::autograd::DistAutogradContainer::forceCurrentContextId(before_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const int64_t before_;
};

} // namespace torchwire
