#include "test/support/cuda/event_record.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <string>

namespace torchwire::cuda_stand_in {
namespace {

constexpr timespec kUntilALookAtTheProcess{.tv_sec = 0, .tv_nsec = 200'000'000};

/// Of all processes that have the word: std::atomic's own wait is for one.
void wait(std::atomic<uint32_t>& word, uint32_t old) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, old, &kUntilALookAtTheProcess, nullptr, 0);
}

void wakeAll(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void raise(std::atomic<uint64_t>& number, uint64_t least) {
  uint64_t before = number.load();
  while (before < least && !number.compare_exchange_weak(before, least)) {
  }
}

} // namespace

uint64_t EventRecord::issue() {
  const uint64_t number = issued_.fetch_add(1) + 1;
  placeOf(number).process.store(static_cast<int32_t>(::getpid()));
  return number;
}

void EventRecord::complete(uint64_t number) {
  completedAt_.store(
      std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
  raise(placeOf(number).completed, number);
  changes_.fetch_add(1);
  wakeAll(changes_);
}

uint64_t EventRecord::last() const {
  return issued_.load();
}

bool EventRecord::isComplete(uint64_t number) const {
  return number == 0 || ring_[number % kTurn].completed.load() >= number;
}

void EventRecord::await(uint64_t number) {
  for (;;) {
    const uint32_t before = changes_.load();
    if (isComplete(number) || isAbandoned(number)) {
      return;
    }
    wait(changes_, before);
  }
}

int64_t EventRecord::completedAt() const {
  return completedAt_.load();
}

bool EventRecord::isAbandoned(uint64_t number) {
  const int32_t process = placeOf(number).process.load();
  // Not by a signal, which one that nobody has waited for still takes.
  const std::string path = "/proc/" + std::to_string(process) + "/exe";
  char first = 0;
  return process != 0 && ::readlink(path.c_str(), &first, 1) < 0 && errno == ENOENT;
}

} // namespace torchwire::cuda_stand_in
