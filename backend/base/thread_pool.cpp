#include "backend/base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/fork.h"
#include "backend/base/log.h"
#include "backend/base/resource_limits.h"

namespace torchwire {

/// What the pool and its threads share. Thread-safe.
class ThreadPool::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(size_t capacity, std::string name, Runner runner, size_t spare)
      : capacity_(capacity), spare_(spare), name_(std::move(name)), runner_(runner) {}

  /// Whose task the calling thread runs; null: nobody's, or one of a process that has forked this one.
  static Core* here() {
    return current != nullptr && current->isOfThisProcess() ? current : nullptr;
  }
  bool isOfThisProcess() const {
    return forkGeneration() == generation_;
  }

  bool run(Task&& task) EXCLUDES(mutex_);
  bool runHere(Task& task) EXCLUDES(mutex_);
  void driveWhenIdle(std::shared_ptr<Driver> driver, std::function<bool()> wanted) EXCLUDES(mutex_);
  void beginBlocking() EXCLUDES(mutex_);
  void endBlocking() EXCLUDES(mutex_);
  void join() EXCLUDES(mutex_);
  size_t idle() const EXCLUDES(mutex_);
  size_t blocked() const EXCLUDES(mutex_);
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
    return running_ < capacity_ && running_ + blocked_ < capacity_ + spare_;
  }
  void runLogged(Task& task);
  bool begin(Task& task, std::shared_ptr<Thread>& woken) REQUIRES(mutex_);
  bool start(Task& task) REQUIRES(mutex_);
  void loop(const std::shared_ptr<Thread>& self);
  static void drive(Thread& self, const Idling& idling);
  bool takeNext(const std::shared_ptr<Thread>& self, Task& task, bool hasRun) EXCLUDES(mutex_);
  bool sleep(Thread& self, MutexLock& lock) REQUIRES(mutex_);
  std::vector<std::thread> retire(const std::shared_ptr<Thread>& self) REQUIRES(mutex_);

  static thread_local Core* current;

  const uint64_t generation_ = forkGeneration();
  const size_t capacity_;
  const size_t spare_;
  const std::string name_;
  const Runner runner_;
  mutable Mutex mutex_{LockRank::threadPool};
  bool stopping_ GUARDED_BY(mutex_) = false;
  size_t running_ GUARDED_BY(mutex_) = 0; // tasks, here and elsewhere
  size_t blocked_ GUARDED_BY(mutex_) = 0; // tasks that wait, and are not among the running ones
  std::vector<std::shared_ptr<Thread>> threads_ GUARDED_BY(mutex_);
  std::vector<std::thread> retired_ GUARDED_BY(mutex_); // threads that end, to be joined
  std::vector<std::shared_ptr<Thread>> idle_ GUARDED_BY(mutex_); // a stack: last in, first out
  std::deque<Task> waiting_ GUARDED_BY(mutex_);
  bool atLimit_ GUARDED_BY(mutex_) = false; // when it last had to start a thread
  std::shared_ptr<const Idling> idling_ GUARDED_BY(mutex_); // null: idle threads sleep
};

namespace {

// Threads in the places of tasks that wait come and go with these, which may come again soon.
constexpr std::chrono::seconds kSparePatience{1};

} // namespace

thread_local ThreadPool::Core* ThreadPool::Core::current = nullptr;

void ThreadPool::Core::runLogged(Task& task) {
  Core* const outer = std::exchange(current, this);
  const uint64_t generation = forkGeneration();
  try {
    runner_(task);
    endIfForkedSince(generation);
  } catch (const std::exception& e) {
    endIfForkedSince(generation);
    log(LogLevel::error, "a task of the " + name_ + " threads threw: " + e.what());
  } catch (...) {
    endIfForkedSince(generation);
    log(LogLevel::error, "a task of the " + name_ + " threads threw something unknown");
  }
  current = outer;
}

bool ThreadPool::Core::run(Task&& task) {
  std::shared_ptr<Thread> woken;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      return false;
    }
    if (!hasRoom() || !begin(task, woken)) {
      if (running_ + blocked_ == 0) {
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
  } else if (threads_.size() >= capacity_ + spare_ || !start(task)) {
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
  runLogged(task);
  task = Task(); // what it holds goes before the next begins
  std::shared_ptr<Thread> woken;
  {
    MutexLock lock(mutex_);
    --running_;
    if (!stopping_ && !waiting_.empty() && hasRoom() && begin(waiting_.front(), woken)) {
      waiting_.pop_front(); // else a thread that is busy yet takes it
    }
    while (stopping_ && !waiting_.empty()) { // there may be no thread any more
      Task last = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      runLogged(last);
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
    if (!sleep(*self, lock)) {
      std::vector<std::thread> gone = retire(self);
      lock.unlock();
      for (std::thread& thread : gone) {
        thread.join();
      }
      return false;
    }
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

/// Until the thread is called. False: it is not needed any more.
bool ThreadPool::Core::sleep(Thread& self, MutexLock& lock) {
  const auto isCalled = [&]()
                            REQUIRES(mutex_) { return static_cast<bool>(self.next) || stopping_; };
  while (threads_.size() > capacity_) {
    if (self.wake.wait_for(lock, kSparePatience, isCalled)) {
      return true;
    }
    if (threads_.size() > capacity_) {
      return false;
    }
  }
  self.wake.wait(lock, isCalled);
  return true;
}

/// Takes an idle thread, the calling one, out of the pool. Returns those that have gone before, to be joined unlocked.
std::vector<std::thread> ThreadPool::Core::retire(const std::shared_ptr<Thread>& self) {
  std::erase(idle_, self);
  std::erase(threads_, self);
  std::vector<std::thread> gone = std::exchange(retired_, {});
  retired_.push_back(std::move(self->handle));
  return gone;
}

void ThreadPool::Core::beginBlocking() {
  std::shared_ptr<Thread> woken;
  {
    MutexLock lock(mutex_);
    --running_;
    ++blocked_;
    if (!stopping_ && !waiting_.empty() && hasRoom() && begin(waiting_.front(), woken)) {
      waiting_.pop_front();
    }
  }
  if (woken) {
    woken->notify();
  }
}

void ThreadPool::Core::endBlocking() {
  MutexLock lock(mutex_);
  ++running_;
  --blocked_;
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
    runLogged(task);
    task = Task(); // captures die here, not when the next task arrives
  }
}

void ThreadPool::Core::join() {
  std::vector<std::shared_ptr<Thread>> threads;
  std::vector<std::thread> retired;
  std::shared_ptr<const Idling> idling; // until nobody interrupts its driver any more
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    retired.swap(retired_);
    for (const auto& thread : threads) {
      thread->called.store(true);
    }
    idle_.clear();
    idling = std::move(idling_);
  }
  for (const auto& thread : threads) {
    thread->notify();
  }
  for (std::thread& thread : retired) {
    thread.join();
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
  return hasRoom() ? std::min(capacity_ - running_, capacity_ + spare_ - running_ - blocked_) : 0;
}

size_t ThreadPool::Core::blocked() const {
  MutexLock lock(mutex_);
  return blocked_;
}

ThreadPool::BlockingScope::BlockingScope() : core_(Core::here()) {
  if (core_ != nullptr) {
    core_->beginBlocking();
  }
}

ThreadPool::BlockingScope::~BlockingScope() {
  if (core_ != nullptr && core_->isOfThisProcess()) {
    core_->endBlocking();
  }
}

ThreadPool::ThreadPool(size_t capacity, std::string name, Runner runner, size_t spare)
    : core_(std::make_shared<Core>(capacity, std::move(name), runner, spare)) {}

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
  return Core::here() != nullptr;
}

size_t ThreadPool::capacity() const {
  return core_->capacity();
}

size_t ThreadPool::idle() const {
  return core_->idle();
}

size_t ThreadPool::blocked() const {
  return core_->blocked();
}

} // namespace torchwire
