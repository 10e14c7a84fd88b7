#include "test/support/cuda/call.h"

#include "test/support/cuda/device.h"
#include "test/support/cuda/faults.h"
#include "test/support/cuda/settings.h"

namespace torchwire::cuda_stand_in {
namespace {

thread_local cudaError_t last = cudaSuccess;

} // namespace

cudaError_t noteError(cudaError_t error) {
  if (error != cudaSuccess) {
    last = error;
  }
  return error;
}

cudaError_t lastError(bool forget) {
  const cudaError_t error = devicesLost() ? cudaErrorLaunchFailure : last;
  if (forget) {
    last = cudaSuccess;
  }
  return error;
}

cudaError_t absence() {
  if (settings().visible.empty()) {
    return cudaErrorNoDevice;
  }
  return forkedAfterUse() ? cudaErrorInitializationError : cudaSuccess;
}

cudaError_t generalError() {
  const cudaError_t error = absence();
  return error == cudaSuccess && devicesLost() ? cudaErrorLaunchFailure : error;
}

} // namespace torchwire::cuda_stand_in

cudaError_t cudaGetLastError() {
  return torchwire::cuda_stand_in::lastError(true);
}

cudaError_t cudaPeekAtLastError() {
  return torchwire::cuda_stand_in::lastError(false);
}
