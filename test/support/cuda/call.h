// What every function of the API does around its own work.
#pragma once

#include <new>

#include "test/support/cuda/cuda_api.h"

namespace torchwire::cuda_stand_in {

/// The thread's last error becomes this one, unless it is cudaSuccess. Returns it.
cudaError_t noteError(cudaError_t error);

/// The thread's last error; `forget` makes it cudaSuccess.
cudaError_t lastError(bool forget);

/// Why no function may do anything: there is no device, the devices are lost, or this process was forked from one that
/// had used them. Otherwise cudaSuccess.
cudaError_t generalError();

/// The result of `body`, noted as the thread's last error; a general error instead, if there is one.
template <typename Body>
cudaError_t call(Body&& body) {
  cudaError_t error = generalError();
  if (error == cudaSuccess) {
    try {
      error = body();
    } catch (const std::bad_alloc&) {
      error = cudaErrorMemoryAllocation;
    }
  }
  return noteError(error);
}

} // namespace torchwire::cuda_stand_in
