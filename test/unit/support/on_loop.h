// Tests of what is loop-bound.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <utility>

#include "backend/transport/loop.h"
#include "test/unit/support/notifier.h"

namespace torchwire {

/// Runs the action on the loop, waits for it, and returns what it returns. From any other thread.
template <typename Action>
auto onLoop(Loop& loop, Action action) {
  auto task = std::make_shared<std::packaged_task<decltype(action())()>>(std::move(action));
  auto result = task->get_future();
  loop.post([task] { (*task)(); });
  if (result.wait_for(Notifier::kPatience) != std::future_status::ready) {
    throw std::runtime_error("the loop does not come to a task");
  }
  return result.get();
}

/// Something that lives on the loop: made there, and destroyed there.
template <typename Bound>
class OnLoop {
 public:
  template <typename... Args>
  explicit OnLoop(std::shared_ptr<Loop> loop, Args&&... args) : loop_(std::move(loop)) {
    onLoop(*loop_, [&] { bound_ = std::make_unique<Bound>(*loop_, std::forward<Args>(args)...); });
  }
  ~OnLoop() {
    onLoop(*loop_, [&] { bound_.reset(); });
  }
  OnLoop(const OnLoop&) = delete;
  OnLoop& operator=(const OnLoop&) = delete;

  /// What `use(bound)` returns on the loop.
  template <typename Use>
  auto operator()(Use use) {
    return onLoop(*loop_, [&] { return use(*bound_); });
  }
  /// Loop-bound.
  void destroy() {
    bound_.reset();
  }

 private:
  const std::shared_ptr<Loop> loop_;
  std::unique_ptr<Bound> bound_;
};

} // namespace torchwire
