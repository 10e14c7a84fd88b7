// Failures that a test asks for.
#pragma once

#include "test/support/cuda/cuda_api.h"

namespace torchwire::cuda_stand_in {

enum class Fault {
  kMalloc, // "malloc": cudaMalloc
  kHostAlloc, // "host_alloc": cudaHostAlloc
  kIpcGet, // "ipc_get": cudaIpcGetMemHandle, as for memory of expandable segments
  kIpcOpen, // "ipc_open": cudaIpcOpenMemHandle, as in a container with a namespace of its own
  kIpcOpenEvent, // "ipc_open_event": cudaIpcOpenEventHandle
  kIpcWrongBytes, // "ipc_wrong_bytes": what cudaIpcOpenMemHandle opens is other memory
  kNcclInit, // "nccl_init": ncclCommInitRankConfig
  kNcclWrongBytes, // "nccl_wrong_bytes": what a receive of NCCL's brings is other bytes
  kNcclTransfer, // "nccl_transfer": a send or receive of NCCL's hangs until it is aborted, and NCCL notices
  kWork, // "work": a copy, or a filling of memory, loses the devices; every later call fails
  kCount
};

/// The error that the caller is to fail with, or cudaSuccess. One of the failures that were asked for is used up.
/// Thread-safe.
cudaError_t takeFault(Fault fault);

/// Whether the devices are lost, which only a new process changes. Thread-safe.
bool devicesLost();
void loseDevices();

} // namespace torchwire::cuda_stand_in
