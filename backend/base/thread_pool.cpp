#include "backend/base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/log.h"
#include "backend/base/resource_limits.h"

namespace torchwire {
namespace {

thread_local bool runningTask = false;

void runLogged(ThreadPool::Runner runner, Task& task, const std::string& pool) {
  const bool outer = std::exchange(runningTask, true);
  try {
    runner(task);
  } catch (const std::exception& e) {
    log(LogLevel::error, "a task of the " + pool + " threads threw: " + e.what());
  } catch (...) {
    log(LogLevel::error, "a task of the " + pool + " threads threw something unknown");
  }
  runningTask = outer;
}

} // namespace

/// What the pool and its threads share. Thread-safe.
class ThreadPool::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(size_t capacity, std::string name, Runner runner)
      : capacity_(capacity), name_(std::move(name)), runner_(runner) {}

  bool run(Task&& task) EXCLUDES(mutex_);
  bool runHere(Task& task) EXCLUDES(mutex_);
  void driveWhenIdle(std::shared_ptr<Driver> driver, std::function<bool()> wanted) EXCLUDES(mutex_);
  void join() EXCLUDES(mutex_);
  size_t idle() const EXCLUDES(mutex_);
  size_t capacity() const {
    return capacity_;
  }

 private:
  struct Thread {
    std::condition_variable_any wake;
    Task next; // handed over by run() while the thread is on the idle stack
    std::thread handle;
    std::atomic<bool> called{false}; // has a task, or is to end
    std::atomic<Driver*> drives{nullptr};

    /// Once it is called; unlocked, or it would at once wait for the mutex.
    void notify() {
      if (Driver* const driver = drives.load()) {
        driver->interrupt();
      }
      wake.notify_one();
    }
  };
  struct Idling {
    std::shared_ptr<Driver> driver;
    std::function<bool()> wanted;
  };

  bool hasRoom() const REQUIRES(mutex_) {
    return running_ < capacity_;
  }
  bool begin(Task& task, std::shared_ptr<Thread>& woken) REQUIRES(mutex_);
  bool start(Task& task) REQUIRES(mutex_);
  void loop(const std::shared_ptr<Thread>& self);
  static void drive(Thread& self, const Idling& idling);
  bool takeNext(const std::shared_ptr<Thread>& self, Task& task, bool hasRun) EXCLUDES(mutex_);

  const size_t capacity_;
  const std::string name_;
  const Runner runner_;
  mutable Mutex mutex_{LockRank::threadPool};
  bool stopping_ GUARDED_BY(mutex_) = false;
  size_t running_ GUARDED_BY(mutex_) = 0; // tasks, here and elsewhere
  std::vector<std::shared_ptr<Thread>> threads_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Thread>> idle_ GUARDED_BY(mutex_); // a stack: last in, first out
  std::deque<Task> waiting_ GUARDED_BY(mutex_);
  bool atLimit_ GUARDED_BY(mutex_) = false; // when it last had to start a thread
  std::shared_ptr<const Idling> idling_ GUARDED_BY(mutex_); // null: idle threads sleep
};

bool ThreadPool::Core::run(Task&& task) {
  std::shared_ptr<Thread> woken;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      return false;
    }
    if (!hasRoom() || !begin(task, woken)) {
      if (running_ == 0) {
        return false; // not one thread could be started
      }
      waiting_.push_back(std::move(task));
    }
  }
  if (woken) {
    woken->notify();
  }
  return true;
}

/// Gives the task to a thread; false if there is none. One that has to be woken is left in `woken`.
bool ThreadPool::Core::begin(Task& task, std::shared_ptr<Thread>& woken) {
  if (!idle_.empty()) {
    woken = std::move(idle_.back());
    idle_.pop_back();
    woken->next = std::move(task);
    woken->called.store(true); // under the mutex: the thread takes it back with the task
  } else if (threads_.size() >= capacity_ || !start(task)) {
    return false;
  }
  ++running_;
  return true;
}

bool ThreadPool::Core::runHere(Task& task) {
  {
    MutexLock lock(mutex_);
    if (!hasRoom() || !waiting_.empty()) {
      return false;
    }
    ++running_;
  }
  runLogged(runner_, task, name_);
  task = Task(); // what it holds goes before the next begins
  std::shared_ptr<Thread> woken;
  {
    MutexLock lock(mutex_);
    --running_;
    if (!stopping_ && !waiting_.empty() && begin(waiting_.front(), woken)) {
      waiting_.pop_front(); // else a thread that is busy yet takes it
    }
    while (stopping_ && !waiting_.empty()) { // there may be no thread any more
      Task last = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      runLogged(runner_, last, name_);
      last = Task();
      lock.lock();
    }
  }
  if (woken) {
    woken->notify();
  }
  return true;
}

bool ThreadPool::Core::start(Task& task) {
  auto thread = std::make_shared<Thread>();
  try {
    thread->handle = std::thread([core = shared_from_this(), thread] { core->loop(thread); });
  } catch (const std::system_error& e) {
    if (!std::exchange(atLimit_, true)) { // else it has been told
      log(LogLevel::error,
          std::string("cannot start another thread: ") + e.what() + ": " + threadLimits());
    }
    return false;
  }
  atLimit_ = false;
  thread->next = std::move(task); // the thread looks for it under the mutex, which is held here
  threads_.push_back(std::move(thread));
  return true;
}

bool ThreadPool::Core::takeNext(const std::shared_ptr<Thread>& self, Task& task, bool hasRun) {
  MutexLock lock(mutex_);
  running_ -= hasRun ? 1 : 0;
  if (!self->next && !waiting_.empty() && (hasRoom() || stopping_)) {
    ++running_;
    self->next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  if (!self->next && !stopping_) {
    idle_.push_back(self);
    if (const auto idling = idling_) {
      lock.unlock();
      drive(*self, *idling);
      lock.lock();
    }
    self->wake.wait(
        lock, [&]() REQUIRES(mutex_) { return static_cast<bool>(self->next) || stopping_; });
    if (!self->next && !waiting_.empty()) { // what had to wait for a task that runs elsewhere
      self->next = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
    }
  }
  task = std::move(self->next);
  self->next = Task();
  self->called.store(stopping_);
  return static_cast<bool>(task);
}

void ThreadPool::Core::drive(Thread& self, const Idling& idling) {
  self.drives.store(idling.driver.get());
  idling.driver->drive([&] { return self.called.load() || !idling.wanted(); });
  self.drives.store(nullptr);
}

void ThreadPool::Core::driveWhenIdle(std::shared_ptr<Driver> driver, std::function<bool()> wanted) {
  MutexLock lock(mutex_);
  idling_ = std::make_shared<const Idling>(Idling{std::move(driver), std::move(wanted)});
}

void ThreadPool::Core::loop(const std::shared_ptr<Thread>& self) {
  pthread_setname_np(pthread_self(), name_.substr(0, 15).c_str());
  Task task;
  for (bool hasRun = false; takeNext(self, task, hasRun); hasRun = true) {
    runLogged(runner_, task, name_);
    task = Task(); // captures die here, not when the next task arrives
  }
}

void ThreadPool::Core::join() {
  std::vector<std::shared_ptr<Thread>> threads;
  std::shared_ptr<const Idling> idling; // until nobody interrupts its driver any more
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    for (const auto& thread : threads) {
      thread->called.store(true);
    }
    idle_.clear();
    idling = std::move(idling_);
  }
  for (const auto& thread : threads) {
    thread->notify();
  }
  for (const auto& thread : threads) {
    if (thread->handle.get_id() == std::this_thread::get_id()) {
      thread->handle.detach();
    } else {
      thread->handle.join();
    }
  }
}

size_t ThreadPool::Core::idle() const {
  MutexLock lock(mutex_);
  return capacity_ - std::min(capacity_, running_);
}

ThreadPool::ThreadPool(size_t capacity, std::string name, Runner runner)
    : core_(std::make_shared<Core>(capacity, std::move(name), runner)) {}

ThreadPool::~ThreadPool() {
  join();
}

bool ThreadPool::run(Task&& task) {
  return core_->run(std::move(task));
}

bool ThreadPool::runHere(Task& task) {
  const auto core = core_; // the task may end the pool
  return core->runHere(task);
}

void ThreadPool::driveWhenIdle(std::shared_ptr<Driver> driver, std::function<bool()> wanted) {
  core_->driveWhenIdle(std::move(driver), std::move(wanted));
}

void ThreadPool::join() {
  core_->join();
}

bool ThreadPool::isRunningTask() {
  return runningTask;
}

size_t ThreadPool::capacity() const {
  return core_->capacity();
}

size_t ThreadPool::idle() const {
  return core_->idle();
}

} // namespace torchwire
