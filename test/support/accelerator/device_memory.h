// The allocator of device memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

namespace torchwire::accelerator {

/// For tensors on the thread's current device, on its current stream: as a caching allocator's, a block is free once
/// that stream, and those that recordStream() names, have come to the free. Throws c10::OutOfMemoryError. Thread-safe.
c10::Allocator* deviceAllocator();

/// Ignores what does not come from deviceAllocator().
void recordStream(const c10::DataPtr& data, const c10::Stream& stream);

} // namespace torchwire::accelerator
