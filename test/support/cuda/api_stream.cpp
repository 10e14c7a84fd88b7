// Streams, and functions of the host that run on them.
#include <utility>

#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

using namespace torchwire::cuda_stand_in;

namespace {

/// With the stream, if there is one.
template <typename Body>
cudaError_t callOn(cudaStream_t handle, Body&& body) {
  return call([&] {
    const auto stream = stream_table::find(handle);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(stream);
  });
}

} // namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  return call([&] {
    use(currentDevice());
    *handle = stream_table::create(currentDevice(), flags, priority);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call(
      [&] { return stream_table::destroy(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return callOn(handle, [](const auto& stream) {
    count(Count::kStreamSynchronize);
    stream_table::await(stream);
    return generalError(); // of the work that was awaited
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return callOn(handle, [](const auto& stream) {
    return stream_table::isIdle(stream) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return callOn(handle, [&](const auto& stream) {
    *priority = stream->priority();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  return callOn(handle, [&](const auto& stream) {
    *flags = stream->flags();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  return callOn(handle, [&](const auto& stream) {
    *id = stream->id();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return callOn(handle, [&](const auto& stream) {
    *device = stream->device();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamAddCallback(
    cudaStream_t handle, cudaStreamCallback_t callback, void* data, unsigned) {
  return callOn(handle, [=](const auto& stream) {
    stream_table::enqueue(stream, [=] {
      count(Count::kCallbacks);
      callback(handle, generalError(), data);
    });
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return callOn(handle, [=](const auto& stream) {
    stream_table::enqueue(stream, [=] {
      count(Count::kCallbacks);
      function(data);
    });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return callOn(handle, [&](const auto&) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long*, cudaGraph_t*,
    const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  return cudaStreamIsCapturing(handle, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}
