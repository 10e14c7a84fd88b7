// What every function of the API does around its own work.
#pragma once

#include <new>
#include <utility>

#include "test/support/cuda/cuda_api.h"

namespace torchwire::cuda_stand_in {

/// The thread's last error becomes this one, unless it is cudaSuccess. Returns it.
cudaError_t noteError(cudaError_t error);

/// The thread's last error; `forget` makes it cudaSuccess.
cudaError_t lastError(bool forget);

/// Why no function may do anything: there is no device, or this process was forked from one that had used one.
/// Otherwise cudaSuccess.
cudaError_t absence();

/// The same, or that the devices are lost.
cudaError_t generalError();

template <typename Body>
cudaError_t callUnless(cudaError_t error, Body&& body) {
  if (error == cudaSuccess) {
    try {
      error = body();
    } catch (const std::bad_alloc&) {
      error = cudaErrorMemoryAllocation;
    }
  }
  return noteError(error);
}

/// The result of `body`, noted as the thread's last error; a general error instead, if there is one.
template <typename Body>
cudaError_t call(Body&& body) {
  return callUnless(generalError(), std::forward<Body>(body));
}

/// The same for what is not of the devices themselves, and goes on after they are lost: PyTorch's guards set the
/// current device while an exception passes them.
template <typename Body>
cudaError_t callOnHost(Body&& body) {
  return callUnless(absence(), std::forward<Body>(body));
}

} // namespace torchwire::cuda_stand_in
