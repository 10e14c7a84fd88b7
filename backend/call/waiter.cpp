#include "backend/call/waiter.h"

#include <utility>

namespace torchwire {

void Waiter::give(Task task) {
  MutexLock lock(mutex_);
  task_ = std::move(task);
  given_.store(true);
  // Under the lock, for the waiter not to go meanwhile: it takes the task under the lock.
  if (Driver* const driver = driver_.load()) {
    driver->interrupt();
  }
  there_.notify_one();
}

Task Waiter::await(Driver* driver) {
  if (driver != nullptr) {
    driver_.store(driver);
    driver->drive([this] { return given_.load(); });
    driver_.store(nullptr);
  }
  MutexLock lock(mutex_);
  there_.wait(lock, [this]() REQUIRES(mutex_) { return static_cast<bool>(task_); });
  return std::move(task_);
}

} // namespace torchwire
