// libtorch's own engine behind our interface.
#pragma once

#include "autograd/engine.h"

#include <atomic>

namespace torchwire {

/// Hands each pass to libtorch's DistEngine, which blocks until it is over. Thread-safe.
class LibtorchEngine final : public Engine {
 public:
  void start(
      int64_t contextId,
      const torch::autograd::variable_list& roots,
      bool retainGraph,
      Done done) override;
  void contextReleased(int64_t /*contextId*/) override {}
  uint64_t passesStarted() const override {
    return started_;
  }

 private:
  std::atomic<uint64_t> started_{0};
};

} // namespace torchwire
