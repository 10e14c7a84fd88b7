#include "backend/base/timer.h"

#include <pthread.h>

#include <exception>

#include "backend/base/log.h"
#include "backend/base/resource_limits.h"
#include "backend/base/thread_role.h"

namespace torchwire {
namespace {

/// With what the task holds, which goes here.
void run(Task task) {
  const DeliverScope scope;
  try {
    task();
  } catch (const std::exception& e) {
    log(LogLevel::error, std::string("a timed task threw: ") + e.what());
  } catch (...) {
    log(LogLevel::error, "a timed task threw something unknown");
  }
  task = Task();
}

} // namespace

Timer::~Timer() {
  stop();
}

void Timer::at(Clock::time_point when, Task task) {
  MutexLock lock(mutex_);
  if (stopping_) {
    return;
  }
  const bool earliest = tasks_.empty() || when < tasks_.begin()->first;
  tasks_.emplace(when, std::move(task));
  if (!thread_.joinable()) {
    thread_ = startThread([this] { loop(); });
  } else if (earliest) { // a later task needs no wake-up now
    wake_.notify_one();
  }
}

void Timer::stop() {
  std::thread thread;
  std::multimap<Clock::time_point, Task> dropped; // destroyed unlocked: captures may be anything
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
    thread.swap(thread_);
    wake_.notify_one();
  }
  if (thread.joinable()) {
    thread.join();
  }
}

void Timer::loop() {
  pthread_setname_np(pthread_self(), "torchwire_timer");
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (tasks_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const Clock::time_point next = tasks_.begin()->first;
    if (Clock::now() < next) {
      wake_.wait_until(lock, next);
      continue;
    }
    Task task = std::move(tasks_.begin()->second);
    tasks_.erase(tasks_.begin());
    lock.unlock();
    run(std::move(task));
    lock.lock();
  }
}

} // namespace torchwire
