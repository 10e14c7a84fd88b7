// Events.
#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/event_table.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

using namespace torchwire::cuda_stand_in;

namespace {

/// With the event, if there is one.
template <typename Body>
cudaError_t callOn(cudaEvent_t handle, Body&& body) {
  return call([&] {
    const auto event = event_table::find(handle);
    return event == nullptr ? cudaErrorInvalidResourceHandle : body(event);
  });
}

cudaError_t recordOn(cudaEvent_t handle, cudaStream_t streamHandle) {
  return callOn(handle, [&](const auto& event) {
    const auto stream = stream_table::find(streamHandle);
    if (stream == nullptr || stream->device() != event->device()) {
      return cudaErrorInvalidResourceHandle;
    }
    use(stream->device());
    const uint64_t number = event->record().issue();
    stream_table::enqueue(stream, [event, number] { event->record().complete(number); });
    return cudaSuccess;
  });
}

} // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return call([&] {
    // Between processes there is no common clock.
    if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0) {
      return cudaErrorInvalidValue;
    }
    use(currentDevice());
    auto event = Event::make(currentDevice(), flags);
    if (event == nullptr) {
      return cudaErrorMemoryAllocation;
    }
    *handle = event_table::add(std::move(event));
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call(
      [&] { return event_table::remove(handle) ? cudaSuccess : cudaErrorInvalidResourceHandle; });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return recordOn(handle, stream);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  return recordOn(handle, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t streamHandle, cudaEvent_t handle, unsigned) {
  return callOn(handle, [&](const auto& event) {
    const auto stream = stream_table::find(streamHandle);
    if (stream == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    // The last time before this call, not before the stream comes to it.
    const uint64_t number = event->record().last();
    if (!event->record().isComplete(number)) {
      stream_table::enqueue(stream, [event, number] { event->record().await(number); });
    }
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return callOn(handle, [](const auto& event) {
    EventRecord& record = event->record();
    return record.isComplete(record.last()) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return callOn(handle, [](const auto& event) {
    count(Count::kEventSynchronize);
    event->record().await(event->record().last());
    return generalError(); // of the work that was awaited
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return callOn(start, [&](const auto& first) {
    const auto second = event_table::find(end);
    if (second == nullptr || !first->hasTime() || !second->hasTime() ||
        first->record().last() == 0 || second->record().last() == 0) {
      return cudaErrorInvalidResourceHandle;
    }
    for (const auto& event : {first, second}) {
      if (!event->record().isComplete(event->record().last())) {
        return cudaErrorNotReady;
      }
    }
    constexpr float kNanoseconds = 1e6F;
    *milliseconds =
        static_cast<float>(second->record().completedAt() - first->record().completedAt()) /
        kNanoseconds;
    return cudaSuccess;
  });
}
