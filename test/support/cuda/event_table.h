// The events that there are.
#pragma once

#include <memory>

#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/event.h"

namespace torchwire::cuda_stand_in::event_table {

cudaEvent_t add(std::shared_ptr<Event> event);
/// Null if there is no such event. Thread-safe, as all of these.
std::shared_ptr<Event> find(cudaEvent_t handle);
/// False if there is no such event. Streams that have still to come to it keep it until then.
bool remove(cudaEvent_t handle);

} // namespace torchwire::cuda_stand_in::event_table
