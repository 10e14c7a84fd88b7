// Kernels, which the stand-in has none of.
#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/statistics.h"

using namespace torchwire::cuda_stand_in;

namespace {

cudaError_t refuse() {
  return call([] {
    count(Count::kLaunches);
    return cudaErrorNoKernelImageForDevice;
  });
}

} // namespace

/// What `kernel<<<…>>>()` asks first, and goes no further if this is not 0. PyTorch looks at the last error then.
TORCHWIRE_EXPORT unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*) {
  return static_cast<unsigned>(refuse());
}

cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse();
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return refuse();
}

cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse();
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return call([] { return cudaSuccess; });
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return call([] { return cudaSuccess; });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return call([] { return cudaSuccess; });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 1;
  return call([] { return cudaSuccess; });
}

cudaError_t cudaGetSymbolAddress(void**, const void*) {
  return call([] { return cudaErrorInvalidSymbol; });
}

cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return call([] { return cudaErrorInvalidSymbol; });
}
