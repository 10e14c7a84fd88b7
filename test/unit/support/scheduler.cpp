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
  passOn(nullptr);
  for (const auto& thread : threads_) {
    thread->thread.join();
  }
  MutexLock lock(mutex_);
  return complaints_;
}

void Scheduler::live(Thread& self) {
  awaitTurn(self);
  if (!isHalted()) {
    attempt(self);
  }
  passOn(&self);
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
  {
    MutexLock lock(mutex_);
    makeReady(*running_);
  }
  suspend();
}

void Scheduler::sleepFor(std::chrono::nanoseconds duration) {
  {
    MutexLock lock(mutex_);
    running_->awaits = "the end of a sleep";
    sleeping_.emplace(now_ + duration, running_);
  }
  suspend();
}

void Scheduler::waitForChange(const std::string& what) {
  {
    MutexLock lock(mutex_);
    running_->awaits = what;
    waiting_.push_back(running_);
  }
  suspend();
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

void Scheduler::suspend() {
  Thread* self = nullptr;
  {
    MutexLock lock(mutex_);
    self = running_;
  }
  passOn(self);
  awaitTurn(*self);
  if (isHalted()) {
    throw Halted();
  }
}

// Wakes the next thread when no lock is held that it is about to take.
void Scheduler::passOn(const Thread* self) {
  Thread* next = nullptr;
  {
    MutexLock lock(mutex_);
    next = chooseNext();
  }
  if (next == nullptr) {
    return; // all have ended
  }
  {
    const std::lock_guard lock(next->turnMutex);
    next->turn = true;
  }
  if (next != self) {
    next->turnCame.notify_one();
  }
}

void Scheduler::awaitTurn(Thread& self) {
  std::unique_lock lock(self.turnMutex);
  self.turnCame.wait(lock, [&] { return self.turn; });
  self.turn = false;
}

bool Scheduler::isHalted() const {
  MutexLock lock(mutex_);
  return halted_;
}

void Scheduler::makeReady(Thread& thread) {
  thread.awaits.clear();
  ready_.push_back(&thread);
}

Scheduler::Thread* Scheduler::chooseNext() {
  ++steps_;
  if (!halted_) {
    wakeSleepers();
    haltBeyondLimits();
  }
  running_ = nullptr;
  if (!ready_.empty()) {
    std::swap(ready_[random_() % ready_.size()], ready_.back());
    running_ = ready_.back();
    ready_.pop_back();
  }
  return running_;
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
