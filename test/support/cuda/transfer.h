// Copies and fillings of memory, as operations of a stream.
#pragma once

#include <cstddef>
#include <memory>

#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/stream.h"

namespace torchwire::cuda_stand_in {

/// What CUDA promises of cudaMemcpyAsync, and no more:
///  - memory that is not pinned is read before this returns, and is written before this returns;
///  - else the stream reads and writes when it comes to that.
/// It is an error if the memory is not of the kind, or ends before the copy does.
cudaError_t enqueueCopy(
    void* to, const void* from, size_t size, cudaMemcpyKind kind,
    const std::shared_ptr<Stream>& stream);

/// Of a device's memory, or pinned memory.
cudaError_t enqueueFill(void* to, int value, size_t size, const std::shared_ptr<Stream>& stream);

} // namespace torchwire::cuda_stand_in
