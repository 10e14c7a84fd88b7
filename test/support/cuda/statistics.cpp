#include "test/support/cuda/statistics.h"

#include <array>
#include <atomic>
#include <string_view>

#include "test/support/cuda/cuda_api.h"

namespace torchwire::cuda_stand_in {
namespace {

constexpr size_t kKinds = static_cast<size_t>(Count::kCount);

constexpr std::array<std::string_view, kKinds> kNames{
    "stream_synchronize", "event_synchronize", "device_synchronize",
    "copy_waits",         "free_waits",        "copies",
    "copied_bytes",       "peer_copies",       "ipc_copies",
    "ipc_gets",           "ipc_opens",         "ipc_event_opens",
    "device_allocations", "host_allocations",  "nccl_loads",
    "nccl_sends",         "nccl_receives",     "nccl_aborts",
    "callbacks",          "launches",          "stream_threads"};

std::array<std::atomic<uint64_t>, kKinds> counts{};

} // namespace

void count(Count kind, uint64_t by) {
  counts[static_cast<size_t>(kind)].fetch_add(by, std::memory_order_relaxed);
}

} // namespace torchwire::cuda_stand_in

/// -1 if there is no such count.
TORCHWIRE_EXPORT int64_t torchwire_test_cuda_count(const char* name) {
  using namespace torchwire::cuda_stand_in;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (kNames[kind] == name) {
      return static_cast<int64_t>(counts[kind].load(std::memory_order_relaxed));
    }
  }
  return -1;
}

/// The name of the count with this number, from 0 on; null after the last.
TORCHWIRE_EXPORT const char* torchwire_test_cuda_count_name(int number) {
  using namespace torchwire::cuda_stand_in;
  return number >= 0 && static_cast<size_t>(number) < kKinds ? kNames[number].data() : nullptr;
}
