#include "test/support/cuda/address_map.h"

#include <map>
#include <mutex>
#include <utility>

namespace torchwire::cuda_stand_in::address_map {
namespace {

struct Map {
  std::mutex mutex;
  std::map<const char*, std::shared_ptr<MemoryBlock>> blocks; // by their first address
};

Map& map() {
  static Map& all = *new Map;
  return all;
}

/// With the mutex held.
std::shared_ptr<MemoryBlock> at(const char* address) {
  auto& blocks = map().blocks;
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) {
    return nullptr;
  }
  const auto& candidate = std::prev(after)->second;
  return address < candidate->base() + candidate->size() ? candidate : nullptr;
}

} // namespace

bool add(std::shared_ptr<MemoryBlock> block) {
  const std::lock_guard lock(map().mutex);
  const auto after = map().blocks.lower_bound(block->base());
  const bool overlaps = at(block->base()) != nullptr ||
      (after != map().blocks.end() && after->first < block->base() + block->size());
  if (!overlaps) {
    const char* const base = block->base();
    map().blocks.emplace(base, std::move(block));
  }
  return !overlaps;
}

std::shared_ptr<MemoryBlock> remove(const void* base, MemoryBlock::Kind kind) {
  const std::lock_guard lock(map().mutex);
  const auto found = map().blocks.find(static_cast<const char*>(base));
  if (found == map().blocks.end() || found->second->kind() != kind) {
    return nullptr;
  }
  auto block = std::move(found->second);
  map().blocks.erase(found);
  return block;
}

std::shared_ptr<MemoryBlock> find(const void* address) {
  const std::lock_guard lock(map().mutex);
  return at(static_cast<const char*>(address));
}

} // namespace torchwire::cuda_stand_in::address_map
