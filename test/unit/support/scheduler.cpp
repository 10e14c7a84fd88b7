#include "test/unit/support/scheduler.h"

#include <exception>
#include <utility>

namespace torchwire {

Scheduler::Scheduler(unsigned seed) : Scheduler(seed, Limits()) {}

Scheduler::Scheduler(unsigned seed, Limits limits) : limits_(limits), random_(seed) {}

Scheduler::~Scheduler() = default; // run() has joined the threads; without it none was started

void Scheduler::add(std::string name, Task body, std::chrono::nanoseconds start) {
  auto thread = std::make_unique<Thread>();
  thread->name = std::move(name);
  thread->body = std::move(body);
  thread->awaits = "its start";
  MutexLock lock(mutex_);
  sleeping_.emplace(now_ + start, thread.get());
  threads_.push_back(std::move(thread));
}

std::vector<std::string> Scheduler::run() {
  for (const auto& thread : threads_) {
    thread->thread = std::thread([this, &self = *thread] { live(self); });
  }
  {
    MutexLock lock(mutex_);
    chooseNext();
  }
  for (const auto& thread : threads_) {
    thread->thread.join();
  }
  MutexLock lock(mutex_);
  return complaints_;
}

void Scheduler::live(Thread& self) {
  {
    MutexLock lock(mutex_);
    awaitTurn(lock, self);
    if (halted_) {
      chooseNext();
      return;
    }
  }
  attempt(self);
  MutexLock lock(mutex_);
  chooseNext();
}

void Scheduler::attempt(Thread& self) {
  try {
    self.body();
  } catch (const Halted&) {
    // complained of already
  } catch (const std::exception& e) {
    MutexLock lock(mutex_);
    complaints_.push_back(self.name + " threw: " + e.what());
  } catch (...) {
    MutexLock lock(mutex_);
    complaints_.push_back(self.name + " threw something unknown");
  }
}

void Scheduler::yield() {
  MutexLock lock(mutex_);
  ready_.push_back(running_);
  suspend(lock);
}

void Scheduler::sleepFor(std::chrono::nanoseconds duration) {
  MutexLock lock(mutex_);
  running_->awaits = "the end of a sleep";
  sleeping_.emplace(now_ + duration, running_);
  suspend(lock);
}

void Scheduler::waitForChange(const std::string& what) {
  MutexLock lock(mutex_);
  running_->awaits = what;
  waiting_.push_back(running_);
  suspend(lock);
}

void Scheduler::changed() {
  MutexLock lock(mutex_);
  for (Thread* thread : waiting_) {
    makeReady(*thread);
  }
  waiting_.clear();
}

Clock::TimePoint Scheduler::now() {
  MutexLock lock(mutex_);
  return now_;
}

uint64_t Scheduler::draw(uint64_t bound) {
  MutexLock lock(mutex_);
  return random_() % bound;
}

void Scheduler::suspend(MutexLock& lock) {
  Thread& self = *running_;
  chooseNext();
  awaitTurn(lock, self);
  if (halted_) {
    throw Halted();
  }
}

void Scheduler::awaitTurn(MutexLock& lock, Thread& self) {
  while (running_ != &self) {
    self.chosen.wait(lock);
  }
}

void Scheduler::makeReady(Thread& thread) {
  thread.awaits.clear();
  ready_.push_back(&thread);
}

void Scheduler::chooseNext() {
  ++steps_;
  if (!halted_) {
    wakeSleepers();
    haltBeyondLimits();
  }
  running_ = nullptr;
  if (ready_.empty()) {
    return; // all have ended
  }
  std::swap(ready_[random_() % ready_.size()], ready_.back());
  running_ = ready_.back();
  ready_.pop_back();
  running_->chosen.notify_one();
}

void Scheduler::wakeSleepers() {
  if (!ready_.empty() || sleeping_.empty()) {
    return;
  }
  now_ = sleeping_.begin()->first;
  const auto end = sleeping_.upper_bound(now_);
  for (auto it = sleeping_.begin(); it != end; ++it) {
    makeReady(*it->second);
  }
  sleeping_.erase(sleeping_.begin(), end);
}

void Scheduler::haltBeyondLimits() {
  if (now_ - Clock::TimePoint() > limits_.time) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limits_.time).count();
    halt("after " + std::to_string(seconds) + " s");
  } else if (steps_ > limits_.steps) {
    halt("after " + std::to_string(limits_.steps) + " steps");
  } else if (ready_.empty() && !waiting_.empty()) {
    halt("and nobody is left to wake it");
  }
}

// The others end one by one, as they ran: each when it is chosen.
void Scheduler::halt(const std::string& why) {
  halted_ = true;
  for (const auto& [time, thread] : sleeping_) {
    ready_.push_back(thread);
  }
  ready_.insert(ready_.end(), waiting_.begin(), waiting_.end());
  sleeping_.clear();
  waiting_.clear();
  for (const Thread* thread : ready_) {
    const std::string& awaits = thread->awaits;
    complaints_.push_back(
        thread->name + (awaits.empty() ? " is busy " : " waits for " + awaits + " ") + why);
  }
}

} // namespace torchwire
