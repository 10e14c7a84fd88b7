#include "backend/call/waiter.h"

#include <utility>

namespace torchwire {

void Waiter::give(Task task) {
  task_ = std::move(task);
  state_.store(given);
  if (Driver* const driver = driver_.load()) {
    driver->interrupt();
  }
  state_.store(released);
  state_.notify_one();
}

Task Waiter::await(Driver* driver) {
  if (driver != nullptr) {
    driver_.store(driver);
    driver->drive([this] { return state_.load() != waiting; });
    driver_.store(nullptr);
  }
  for (int state = state_.load(); state != released; state = state_.load()) {
    state_.wait(state);
  }
  return std::move(task_);
}

} // namespace torchwire
