#include "test/support/cuda/event_table.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace torchwire::cuda_stand_in::event_table {
namespace {

struct Table {
  std::mutex mutex;
  std::unordered_map<cudaEvent_t, std::shared_ptr<Event>> events;
};

Table& table() {
  static Table& all = *new Table;
  return all;
}

} // namespace

cudaEvent_t add(std::shared_ptr<Event> event) {
  const std::lock_guard lock(table().mutex);
  const auto handle = reinterpret_cast<cudaEvent_t>(event.get());
  table().events.emplace(handle, std::move(event));
  return handle;
}

std::shared_ptr<Event> find(cudaEvent_t handle) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().events.find(handle);
  return found == table().events.end() ? nullptr : found->second;
}

bool remove(cudaEvent_t handle) {
  const std::lock_guard lock(table().mutex);
  return table().events.erase(handle) != 0;
}

} // namespace torchwire::cuda_stand_in::event_table
