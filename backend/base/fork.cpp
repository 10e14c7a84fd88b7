#include "backend/base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace torchwire {
namespace {

constexpr size_t kBits = 64;
// As many files as Linux lets a process have unless the administrator has said otherwise.
constexpr size_t kMostFiles = size_t{1} << 20;

// A bit for each descriptor that a child closes. No lock: a child may be forked at any moment.
std::array<std::atomic<uint64_t>, kMostFiles / kBits> closedInChild;

// Async-signal-safe, as POSIX asks of what runs in the child of a process with threads.
void onForkInChild() {
  detail::forks.fetch_add(1, std::memory_order_relaxed);
  for (size_t word = 0; word < closedInChild.size(); ++word) {
    if (closedInChild[word].load(std::memory_order_relaxed) == 0) { // as nearly always
      continue;
    }
    const uint64_t bits = closedInChild[word].exchange(0, std::memory_order_relaxed);
    for (size_t bit = 0; bit < kBits; ++bit) {
      if ((bits >> bit & 1) != 0) {
        ::close(static_cast<int>(word * kBits + bit));
      }
    }
  }
}

const int registered = pthread_atfork(nullptr, nullptr, onForkInChild);

uint64_t maskOf(int descriptor) {
  return uint64_t{1} << (static_cast<size_t>(descriptor) % kBits);
}

bool isTracked(int descriptor) {
  return descriptor >= 0 && static_cast<size_t>(descriptor) < kMostFiles;
}

} // namespace

std::atomic<uint64_t> detail::forks{0};

void endIfForkedSince(uint64_t generation) {
  if (forkGeneration() == generation) {
    return;
  }
  std::fputs(
      "torchwire error: a function that was called by RPC, or a callback of a future, has returned "
      "in a process that it has "
      "forked; end such a process with os._exit()\n",
      stderr);
  std::_Exit(EXIT_FAILURE);
}

void closeInForkedChild(int descriptor) {
  if (isTracked(descriptor)) {
    closedInChild[static_cast<size_t>(descriptor) / kBits].fetch_or(
        maskOf(descriptor), std::memory_order_relaxed);
  }
}

void keepInForkedChild(int descriptor) {
  if (isTracked(descriptor)) {
    closedInChild[static_cast<size_t>(descriptor) / kBits].fetch_and(
        ~maskOf(descriptor), std::memory_order_relaxed);
  }
}

} // namespace torchwire
