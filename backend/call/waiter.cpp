#include "backend/call/waiter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <utility>

#include "backend/base/thread_pool.h"

namespace torchwire {
namespace {

// A signal that comes to this thread wakes it at once. One that came while it drove, or that another thread got, is seen
// after this time.
constexpr timespec kFirstLook{.tv_sec = 0, .tv_nsec = 10'000'000};
constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100'000'000};

static_assert(sizeof(std::atomic<int>) == sizeof(int) && std::atomic<int>::is_always_lock_free);

/// As std::atomic::wait(), but for a while only, or until a signal comes.
void waitFor(std::atomic<int>& value, int old, const timespec& time) {
  syscall(SYS_futex, reinterpret_cast<int*>(&value), FUTEX_WAIT_PRIVATE, old, &time, nullptr, 0);
}

void wakeWhoWaitsFor(std::atomic<int>& value) {
  syscall(SYS_futex, reinterpret_cast<int*>(&value), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

} // namespace

void Waiter::give(Task task) {
  task_ = std::move(task);
  state_.fetch_or(given);
  if (Driver* const driver = driver_.load()) {
    driver->interrupt();
  }
  if ((state_.exchange(released) & looks) != 0) {
    wakeWhoWaitsFor(state_);
  } else {
    state_.notify_one();
  }
}

Task Waiter::await(Driver* driver, const std::function<void()>& look) {
  if (driver != nullptr) {
    driver_.store(driver);
    driver->drive([this] { return state_.load() != 0; });
    driver_.store(nullptr);
  }
  if (state_.load() != released) {
    const ThreadPool::BlockingScope blocking;
    sleep(look);
  }
  return std::move(task_);
}

void Waiter::sleep(const std::function<void()>& look) {
  if (!look) {
    for (int state = state_.load(); (state & released) == 0; state = state_.load()) {
      state_.wait(state);
    }
    return;
  }
  state_.fetch_or(looks);
  const timespec* time = &kFirstLook;
  for (int state = state_.load(); (state & released) == 0; state = state_.load()) {
    waitFor(state_, state, *time);
    time = &kLook;
    if (state_.load() == looks) {
      look();
    }
  }
}

} // namespace torchwire
