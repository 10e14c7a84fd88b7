// Tests of what is loop-bound.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "backend/transport/loop.h"

namespace torchwire {

/// Runs the action on the loop and waits for it. From any other thread. Ends the program if the loop does not come to it:
/// the action may refer to what the caller has.
void runOnLoop(Loop& loop, std::function<void()> action);

/// The same, and returns what the action returns. It throws what the action throws.
template <typename Action>
auto onLoop(Loop& loop, Action action) {
  using Result = decltype(action());
  if constexpr (std::is_void_v<Result>) {
    runOnLoop(loop, std::move(action));
  } else {
    std::optional<Result> result;
    runOnLoop(loop, [&] { result.emplace(action()); });
    return std::move(*result);
  }
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
