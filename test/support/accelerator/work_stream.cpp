#include "test/support/accelerator/work_stream.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "test/support/accelerator/settings.h"

namespace torchwire::accelerator {
namespace {

std::atomic<size_t> threadCount{0};

/// The same for each run with the same seed, and another for each stream.
uint64_t seedOf(int device, int64_t id) {
  return settings().seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(device) * 1024 +
      static_cast<uint64_t>(id);
}

} // namespace

WorkStream::WorkStream(int device, int64_t id, Health& health)
    : device_(device), id_(id), health_(health), random_(seedOf(device, id)) {}

void WorkStream::enqueue(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (!stopping_) {
    push({Kind::work, std::move(work)});
  }
}

void WorkStream::mark(std::function<void()> mark) {
  {
    std::lock_guard lock(mutex_);
    if (!stopping_ && !isIdleLocked()) {
      push({Kind::mark, std::move(mark)});
      return;
    }
  }
  mark();
}

std::shared_ptr<Completion> WorkStream::record() {
  auto completion = std::make_shared<Completion>();
  mark([completion] { completion->complete(); });
  return completion;
}

void WorkStream::waitFor(std::shared_ptr<Completion> completion) {
  if (completion->isComplete()) {
    return;
  }
  std::lock_guard lock(mutex_);
  if (!stopping_) {
    push({Kind::wait, [completion = std::move(completion)] { completion->wait(); }});
  }
}

bool WorkStream::isIdle() const {
  std::lock_guard lock(mutex_);
  return isIdleLocked();
}

bool WorkStream::isIdleLocked() const {
  return queue_.empty() && !busy_ && !held_;
}

void WorkStream::push(Entry entry) {
  queue_.push_back(std::move(entry));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { loop(); });
    ++threadCount;
  }
  changed_.notify_all();
}

void WorkStream::hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void WorkStream::release() {
  std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void WorkStream::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  held_ = false;
  changed_.notify_all();
}

void WorkStream::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

size_t WorkStream::threads() noexcept {
  return threadCount.load();
}

void WorkStream::loop() {
  const std::string name = "standin" + std::to_string(device_) + "." + std::to_string(id_);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || (!queue_.empty() && !held_); });
    if (queue_.empty()) {
      return; // stopping
    }
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    busy_ = entry.kind != Kind::mark; // who waits for an event finds the stream idle then
    lock.unlock();
    if (entry.kind == Kind::work) {
      runWork(entry.run);
    } else {
      entry.run();
    }
    entry.run = nullptr; // what it holds goes before the stream is idle
    lock.lock();
    busy_ = false;
  }
}

/// Mostly short, sometimes long: a missing wait shows when the work before it takes longer than usual.
void WorkStream::delay() {
  const double share = std::uniform_real_distribution<>(0, 1)(random_);
  const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(
      settings().maxDelay * (share * share * share));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [this] { return stopping_; });
}

void WorkStream::runWork(const std::function<void()>& work) {
  delay();
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || health_.isLost()) {
      return;
    }
  }
  if (health_.takesWorkFailure()) {
    health_.lose("the work of a stream failed, as a test ordered");
    return;
  }
  try {
    work();
  } catch (const std::exception& e) {
    health_.lose(e.what());
  } catch (...) {
    health_.lose("the work of a stream threw something unknown");
  }
}

} // namespace torchwire::accelerator
