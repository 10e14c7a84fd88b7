// What PyTorch links to and the stand-in does not have. CUDA's own library, which comes next, would look for a driver.
#include "test/support/cuda/call.h"
#include "test/support/cuda/cuda_api.h"

#define TORCHWIRE_MISSING(function, ...)                                         \
  cudaError_t function(__VA_ARGS__) {                                            \
    return torchwire::cuda_stand_in::call([] { return cudaErrorNotSupported; }); \
  }

// Graphs.
TORCHWIRE_MISSING(cudaStreamBeginCapture, cudaStream_t, cudaStreamCaptureMode)
TORCHWIRE_MISSING(cudaStreamEndCapture, cudaStream_t, cudaGraph_t*)
TORCHWIRE_MISSING(cudaGraphDebugDotPrint, cudaGraph_t, const char*, unsigned)
TORCHWIRE_MISSING(cudaGraphDestroy, cudaGraph_t)
TORCHWIRE_MISSING(cudaGraphExecDestroy, cudaGraphExec_t)
TORCHWIRE_MISSING(cudaGraphGetNodes, cudaGraph_t, cudaGraphNode_t*, size_t*)
TORCHWIRE_MISSING(cudaGraphInstantiateWithFlags, cudaGraphExec_t*, cudaGraph_t, unsigned long long)
TORCHWIRE_MISSING(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
TORCHWIRE_MISSING(
    cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*, size_t*)

// Pools, of PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync.
TORCHWIRE_MISSING(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
TORCHWIRE_MISSING(cudaMallocAsync, void**, size_t, cudaStream_t)
TORCHWIRE_MISSING(cudaFreeAsync, void*, cudaStream_t)
TORCHWIRE_MISSING(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
TORCHWIRE_MISSING(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, size_t)
TORCHWIRE_MISSING(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
TORCHWIRE_MISSING(cudaMemPoolTrimTo, cudaMemPool_t, size_t)

// Copies of rows.
TORCHWIRE_MISSING(
    cudaMemcpy2DAsync, void*, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind,
    cudaStream_t)
