#include "test/support/cuda/stream.h"

#include <cmath>
#include <thread>
#include <utility>

#include "test/support/cuda/hold.h"
#include "test/support/cuda/settings.h"
#include "test/support/cuda/statistics.h"

namespace torchwire::cuda_stand_in {

Stream::Stream(int device, unsigned flags, int priority, uint64_t id)
    : device_(device),
      flags_(flags),
      priority_(priority),
      id_(id),
      random_(static_cast<unsigned>(settings().seed * 1'000'003 + device * 1009 + id)) {}

void Stream::Moment::await() const {
  stream->await(ticket);
}

void Stream::enqueue(std::function<void()> operation, std::vector<Moment> after) {
  const std::lock_guard lock(mutex_);
  operations_.push_back({std::move(operation), std::move(after)});
  ++issued_;
  if (!hasThread_) {
    hasThread_ = true;
    count(Count::kStreamThreads);
    // The thread owns the stream, which CUDA lets a program destroy while it has work.
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
}

Stream::Moment Stream::now() {
  const std::lock_guard lock(mutex_);
  return {shared_from_this(), issued_};
}

bool Stream::isIdle() {
  const std::lock_guard lock(mutex_);
  return completed_ == issued_;
}

void Stream::destroy() {
  const std::lock_guard lock(mutex_);
  isDestroyed_ = true;
  changed_.notify_all();
}

void Stream::await(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= ticket; });
}

void Stream::run() {
  for (Operation operation; next(operation);) {
    for (const Moment& moment : operation.after) {
      moment.await();
    }
    sleep();
    awaitRelease(device_);
    operation.run();
    // What it owns goes before anybody learns that it has run: memory may be freed then.
    operation = {};
    const std::lock_guard lock(mutex_);
    ++completed_;
    changed_.notify_all();
  }
}

bool Stream::next(Operation& operation) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !operations_.empty() || isDestroyed_; });
  if (operations_.empty()) {
    return false;
  }
  operation = std::move(operations_.front());
  operations_.pop_front();
  return true;
}

void Stream::sleep() {
  // Most are short, so that tests do not take long; some are long, so that what does not wait is early.
  const double share = std::pow(std::uniform_real_distribution<>()(random_), 6);
  const auto delay =
      std::chrono::duration_cast<std::chrono::microseconds>(share * settings().maxDelay);
  if (delay.count() > 0) {
    std::this_thread::sleep_for(delay);
  }
}

} // namespace torchwire::cuda_stand_in
