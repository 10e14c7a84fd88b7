// The streams that there are, and what the default stream and the others wait for.
#pragma once

#include <functional>
#include <memory>

#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/stream.h"

namespace torchwire::cuda_stand_in::stream_table {

cudaStream_t create(int device, unsigned flags, int priority);
/// Null if there is no such stream. The default stream is that of the current device. Thread-safe, as all of these.
std::shared_ptr<Stream> find(cudaStream_t handle);
/// False if there is no such stream, or it is a default stream.
bool destroy(cudaStream_t handle);

/// Like Stream::enqueue, with what CUDA's legacy default stream means: its work waits for that of all other streams of
/// the device, and they for its, but for streams that were created as not blocking.
void enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> operation);
/// All that was enqueued so far; for a default stream, also by those that it waits for.
void await(const std::shared_ptr<Stream>& stream);
bool isIdle(const std::shared_ptr<Stream>& stream);
/// All streams of the device.
void awaitDevice(int device);
void awaitAllDevices();

} // namespace torchwire::cuda_stand_in::stream_table
