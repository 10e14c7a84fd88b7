#include "test/support/cuda/faults.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>

namespace torchwire::cuda_stand_in {
namespace {

struct Kind {
  const char* name;
  cudaError_t error;
};

constexpr std::array<Kind, static_cast<size_t>(Fault::kCount)> kKinds{{
    {"malloc", cudaErrorMemoryAllocation},
    {"host_alloc", cudaErrorMemoryAllocation},
    {"ipc_get", cudaErrorInvalidValue},
    {"ipc_open", cudaErrorInvalidResourceHandle},
    {"ipc_open_event", cudaErrorInvalidResourceHandle},
    {"ipc_wrong_bytes", cudaErrorInvalidValue},
    {"nccl_init", cudaErrorUnknown},
    {"nccl_wrong_bytes", cudaErrorUnknown},
    {"nccl_transfer", cudaErrorUnknown},
    {"work", cudaErrorLaunchFailure},
}};

struct Plan {
  int64_t left = 0; // -1: every time
  cudaError_t error = cudaSuccess;
};

std::atomic<bool> lost{false};

class Plans {
 public:
  Plans() {
    const char* const text = std::getenv("TORCHWIRE_TEST_CUDA_FAIL");
    std::istringstream entries(text == nullptr ? "" : text);
    for (std::string entry; std::getline(entries, entry, ',');) {
      const size_t colon = entry.find(':');
      const int64_t count = colon == std::string::npos ? -1 : std::atoll(entry.c_str() + colon + 1);
      set(entry.substr(0, colon), count, cudaSuccess);
    }
  }

  bool set(const std::string& name, int64_t count, cudaError_t error) {
    const std::lock_guard lock(mutex_);
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      if (name == kKinds[kind].name) {
        plans_[kind] = {count, error == cudaSuccess ? kKinds[kind].error : error};
        return true;
      }
    }
    return false;
  }

  cudaError_t take(Fault fault) {
    const std::lock_guard lock(mutex_);
    Plan& plan = plans_[static_cast<size_t>(fault)];
    if (plan.left == 0) {
      return cudaSuccess;
    }
    if (plan.left > 0) {
      --plan.left;
    }
    return plan.error;
  }

 private:
  std::mutex mutex_;
  std::array<Plan, kKinds.size()> plans_;
};

Plans& plans() {
  static Plans& all = *new Plans;
  return all;
}

} // namespace

cudaError_t takeFault(Fault fault) {
  return plans().take(fault);
}

bool devicesLost() {
  return lost.load();
}

void loseDevices() {
  lost.store(true);
}

} // namespace torchwire::cuda_stand_in

/// The next `count` uses fail, or each if it is negative; with this error, or with the kind's own if it is 0. Returns
/// whether there is such a kind.
TORCHWIRE_EXPORT int torchwire_test_cuda_fail_next(const char* kind, int64_t count, int error) {
  return torchwire::cuda_stand_in::plans().set(kind, count, static_cast<cudaError_t>(error));
}
