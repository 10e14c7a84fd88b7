// Errors of CUDA's runtime as exceptions. For the library that is compiled against CUDA: see cuda_library.h.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace torchwire::cuda {

/// Throws std::runtime_error when `error` is one; `action` is what was tried, such as "cudaMalloc".
inline void check(cudaError_t error, const char* action) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError(); // else the next kernel of the program's would be said to have failed
    throw std::runtime_error(
        std::string(action) + " failed: " + cudaGetErrorString(error) + " (" +
        cudaGetErrorName(error) + ")");
  }
}

} // namespace torchwire::cuda
