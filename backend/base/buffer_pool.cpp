#include "backend/base/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <new>
#include <utility>

#include "backend/base/aligned_memory.h"

namespace torchwire {
namespace {

// Below, malloc does the same.
constexpr size_t kMinPooled = 64 * 1024;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2 * 1024 * 1024;
// From here on a huge page more or less is little.
constexpr size_t kMinHuge = 2 * kHugePage;

/// A size of which there are eight between two powers of two: at most an eighth is wasted.
size_t roundUp(size_t length) {
  const size_t step = std::max(std::bit_floor(length) / 8, kPage);
  return (length + step - 1) / step * step;
}

void* map(size_t size) {
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return memory;
}

void* mapHuge(size_t size) {
  char* const memory = static_cast<char*>(map(size + kHugePage));
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(memory) % kHugePage) % kHugePage;
  char* const start = memory + before;
  if (before != 0) {
    munmap(memory, before);
  }
  munmap(start + size, kHugePage - before);
  madvise(start, size, MADV_HUGEPAGE); // where the system has none, ordinary ones will do
  return start;
}

} // namespace

BufferPool::~BufferPool() {
  unmap(kept_);
}

std::shared_ptr<void> BufferPool::allocate(size_t length) {
  if (length < kMinPooled) {
    return allocateAligned(length);
  }
  if (length > SIZE_MAX / 2) {
    throw std::bad_alloc();
  }
  const size_t size = roundUp(length);
  void* memory = take(size);
  if (memory == nullptr) {
    memory = size < kMinHuge ? map(size) : mapHuge(size);
  }
  {
    MutexLock lock(mutex_);
    usage_.lent += size;
  }
  return {memory, [self = shared_from_this(), size](void* lent) { self->giveBack(lent, size); }};
}

/// A buffer of that size that is kept, the one that was let go last; or null.
void* BufferPool::take(size_t size) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(
      kept_.rbegin(), kept_.rend(), [size](const Buffer& one) { return one.size == size; });
  if (found == kept_.rend()) {
    return nullptr;
  }
  void* const memory = found->memory;
  kept_.erase(std::next(found).base());
  usage_.kept -= size;
  return memory;
}

void BufferPool::giveBack(void* memory, size_t size) {
  if (forkGeneration() != generation_) {
    munmap(memory, size); // the parent's threads may have held the lock
    return;
  }
  Buffers over;
  {
    MutexLock lock(mutex_);
    usage_.lent -= size;
    usage_.kept += size;
    kept_.push_back({memory, size, Clock::now()});
    over = takeOldest(Clock::time_point::min(), closed_ ? 0 : limit_);
    trimSoon();
  }
  unmap(over);
}

void BufferPool::trimSoon() {
  if (!kept_.empty() && !std::exchange(trimming_, true)) {
    timer_.after(keep_, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->trim();
      }
    });
  }
}

void BufferPool::trim() {
  Buffers old;
  {
    MutexLock lock(mutex_);
    trimming_ = false;
    old = takeOldest(Clock::now() - keep_, limit_);
    if (!closed_) {
      trimSoon();
    }
  }
  unmap(old);
}

/// Takes out what was let go before that time, and more until at most so many bytes are kept.
BufferPool::Buffers BufferPool::takeOldest(Clock::time_point before, size_t atMost) {
  Buffers taken;
  while (!kept_.empty() && (kept_.front().since < before || usage_.kept > atMost)) {
    usage_.kept -= kept_.front().size;
    taken.push_back(kept_.front());
    kept_.pop_front();
  }
  return taken;
}

void BufferPool::unmap(const Buffers& buffers) {
  for (const Buffer& one : buffers) {
    munmap(one.memory, one.size);
  }
}

void BufferPool::close() {
  Buffers all;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    all = takeOldest(Clock::time_point::max(), 0);
  }
  unmap(all);
}

BufferPool::Usage BufferPool::usage() const {
  MutexLock lock(mutex_);
  return usage_;
}

} // namespace torchwire
