// The allocator of pinned host memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Stream.h>

namespace torchwire::accelerator {

/// The host may touch its memory. Once freed, it is poisoned when the streams have come to the free for which
/// record_event() was called, as copies do that do not block. Thread-safe.
at::HostAllocator* pinnedAllocator();

bool isPinned(const void* address);
/// Ignores what is not pinned.
void recordPinned(const void* address, const c10::Stream& stream);
/// The next allocation throws c10::OutOfMemoryError.
void failNextPinnedAllocation() noexcept;
size_t pinnedBytes();
size_t pinnedWritesAfterFree();

} // namespace torchwire::accelerator
