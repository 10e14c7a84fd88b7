// Memory as tensors want it.
#pragma once

#include <cstddef>
#include <memory>

namespace torchwire {

/// `length` bytes, aligned for any tensor (64 bytes); null for none. Throws std::bad_alloc.
std::shared_ptr<void> allocateAligned(size_t length);

} // namespace torchwire
