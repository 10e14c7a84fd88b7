#include "test/support/accelerator/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <new>

#include "test/support/accelerator/work_stream.h"

namespace torchwire::accelerator {
namespace {

constexpr int kPoison = 0xFF;
// Of addresses; memory is used only where blocks are.
constexpr size_t kArenaSize = size_t{16} << 30;
constexpr size_t kQuarantineSize = size_t{64} << 20;
constexpr size_t kSmallest = 512;
constexpr size_t kLargeStep = size_t{1} << 20;

std::byte* map(int protection) {
  void* const at =
      mmap(nullptr, kArenaSize, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(at);
}

} // namespace

void Arena::reserve() {
  if (names_ != nullptr) {
    return;
  }
  bytes_ = map(PROT_READ | PROT_WRITE);
  names_ = access_ == Access::host ? bytes_ : map(PROT_NONE);
}

Block* Arena::allocate(size_t bytes, WorkStream* stream) {
  const size_t size = sizeClassOf(bytes);
  Block* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    reserve();
    block = takeFreed(size);
    if (block == nullptr) {
      block = takeFresh(size);
    }
    if (block == nullptr) {
      return nullptr;
    }
    allocated_[static_cast<std::byte*>(block->address)] = block;
    allocatedBytes_ += block->size;
  }
  std::memset(block->store, kPoison, block->size);
  if (stream != nullptr) {
    use(*block, *stream);
  }
  return block;
}

Block* Arena::takeFreed(size_t size) {
  const auto found = freed_.find(size);
  if (found == freed_.end() || found->second.empty()) {
    return nullptr;
  }
  Block* const block = found->second.back();
  found->second.pop_back();
  return block;
}

Block* Arena::takeFresh(size_t size) {
  if (size > kArenaSize - used_) {
    return nullptr;
  }
  auto* const block = new Block{this, names_ + used_, bytes_ + used_, size, {}, {}};
  used_ += size;
  return block;
}

void Arena::use(Block& block, WorkStream& stream) {
  std::lock_guard lock(block.mutex);
  block.streams.insert(&stream);
}

void Arena::free(Block* block) {
  std::set<WorkStream*> streams;
  {
    std::lock_guard lock(block->mutex);
    streams.swap(block->streams);
  }
  {
    std::lock_guard lock(mutex_);
    allocated_.erase(static_cast<std::byte*>(block->address));
    allocatedBytes_ -= block->size;
  }
  if (streams.empty()) {
    quarantine(block);
    return;
  }
  block->awaited = streams.size();
  for (WorkStream* const stream : streams) {
    stream->mark([this, block] {
      if (--block->awaited == 0) {
        quarantine(block);
      }
    });
  }
}

/// Poisons it, and lets go of those that have been in quarantine for longest.
void Arena::quarantine(Block* block) {
  std::memset(block->store, kPoison, block->size);
  std::lock_guard lock(mutex_);
  quarantined_.push_back(block);
  quarantinedBytes_ += block->size;
  while (quarantinedBytes_ > kQuarantineSize) {
    Block* const oldest = quarantined_.front();
    quarantined_.pop_front();
    quarantinedBytes_ -= oldest->size;
    writesAfterFree_ += isPoison(*oldest) ? 0 : 1;
    freed_[oldest->size].push_back(oldest);
  }
}

bool Arena::contains(const void* address) const {
  return store(address) != nullptr;
}

std::byte* Arena::store(const void* address) const {
  std::lock_guard lock(mutex_);
  const auto* const name = static_cast<const std::byte*>(address);
  if (names_ == nullptr || name < names_ || name >= names_ + kArenaSize) {
    return nullptr;
  }
  return bytes_ + (name - names_);
}

Block* Arena::find(const void* address) const {
  auto* const name = static_cast<std::byte*>(const_cast<void*>(address));
  std::lock_guard lock(mutex_);
  const auto after = allocated_.upper_bound(name);
  if (after == allocated_.begin()) {
    return nullptr;
  }
  const auto& [begin, block] = *std::prev(after);
  return name < begin + block->size ? block : nullptr;
}

size_t Arena::allocatedBytes() const {
  std::lock_guard lock(mutex_);
  return allocatedBytes_;
}

size_t Arena::writesAfterFree() const {
  std::lock_guard lock(mutex_);
  return writesAfterFree_ +
      static_cast<size_t>(std::count_if(quarantined_.begin(), quarantined_.end(), [](Block* block) {
           return !isPoison(*block);
         }));
}

size_t Arena::sizeClassOf(size_t bytes) {
  if (bytes > kLargeStep) {
    return (bytes + kLargeStep - 1) / kLargeStep * kLargeStep;
  }
  return std::max(kSmallest, std::bit_ceil(bytes));
}

bool Arena::isPoison(const Block& block) {
  return std::all_of(block.store, block.store + block.size, [](std::byte byte) {
    return byte == std::byte{kPoison};
  });
}

} // namespace torchwire::accelerator
