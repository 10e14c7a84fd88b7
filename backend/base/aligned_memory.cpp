#include "backend/base/aligned_memory.h"

#include <cstdint>
#include <cstdlib>
#include <new>

namespace torchwire {

std::shared_ptr<void> allocateAligned(size_t length) {
  constexpr size_t kAlignment = 64;
  if (length == 0) {
    return nullptr;
  }
  if (length > SIZE_MAX - kAlignment) {
    throw std::bad_alloc();
  }
  const size_t rounded = (length + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return {memory, std::free};
}

} // namespace torchwire
