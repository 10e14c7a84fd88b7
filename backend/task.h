// A callable that can be moved but not copied: what thread pools and timers run.
#pragma once

#include <memory>
#include <utility>

namespace torchwire {

/// Owns one `void()` callable. std::function would force every capture to be copyable, which
/// frames and futures should not be. Not thread-safe.
class Task {
 public:
  Task() = default;

  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Task>)
  Task(F&& callable) // NOLINT(google-explicit-constructor): reads as a lambda at the call site
      : body_(std::make_unique<Body<std::remove_cvref_t<F>>>(std::forward<F>(callable))) {}

  void operator()() {
    body_->run();
  }
  explicit operator bool() const {
    return body_ != nullptr;
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void run() = 0;
  };
  template <typename F>
  struct Body final : Base {
    explicit Body(F&& f) : callable(std::move(f)) {}
    explicit Body(const F& f) : callable(f) {}
    void run() override {
      callable();
    }
    F callable;
  };

  std::unique_ptr<Base> body_;
};

} // namespace torchwire
