// Callables that can be moved but not copied: what thread pools and timers run, and what ends a call.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace torchwire {

/// Owns one callable that takes `Arguments` and returns nothing. std::function would force every capture to be
/// copyable, which frames and futures should not be: a copy that stays behind on the thread of a loop may turn
/// out to be the last, and drop there what Python owns. Not thread-safe.
template <typename... Arguments>
class MoveOnlyFunction {
 public:
  MoveOnlyFunction() = default;

  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, MoveOnlyFunction>)
  MoveOnlyFunction(
      F&& callable) // NOLINT(google-explicit-constructor): reads as a lambda at the call site
      : body_(std::make_unique<Body<std::remove_cvref_t<F>>>(std::forward<F>(callable))) {}

  void operator()(Arguments... arguments) {
    body_->run(std::forward<Arguments>(arguments)...);
  }
  explicit operator bool() const {
    return body_ != nullptr;
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void run(Arguments... arguments) = 0;
  };
  template <typename F>
  struct Body final : Base {
    explicit Body(F&& f) : callable(std::move(f)) {}
    explicit Body(const F& f) : callable(f) {}
    void run(Arguments... arguments) override {
      callable(std::forward<Arguments>(arguments)...);
    }
    F callable;
  };

  std::unique_ptr<Base> body_;
};

using Task = MoveOnlyFunction<>;

} // namespace torchwire
