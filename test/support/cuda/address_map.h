// Which memory an address belongs to.
#pragma once

#include <memory>

#include "test/support/cuda/memory_block.h"

namespace torchwire::cuda_stand_in::address_map {

/// False if some of it is there already. Thread-safe, as all of these.
bool add(std::shared_ptr<MemoryBlock> block);
/// The block that begins there and is of this kind, no longer in the map. Null if there is none.
std::shared_ptr<MemoryBlock> remove(const void* base, MemoryBlock::Kind kind);
/// The block that the address is in. Null for memory that CUDA does not know.
std::shared_ptr<MemoryBlock> find(const void* address);

} // namespace torchwire::cuda_stand_in::address_map
