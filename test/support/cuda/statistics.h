// What has happened in this process, for tests to look at.
#pragma once

#include <cstdint>

namespace torchwire::cuda_stand_in {

enum class Count {
  kStreamSynchronize, // "stream_synchronize": where the host has waited
  kEventSynchronize, // "event_synchronize"
  kDeviceSynchronize, // "device_synchronize"
  kCopyWaits, // "copy_waits": a copy from or to memory that is not pinned
  kFreeWaits, // "free_waits": cudaFree and its like wait for the devices
  kCopies, // "copies"
  kCopiedBytes, // "copied_bytes"
  kPeerCopies, // "peer_copies": of the copies, those between two devices
  kIpcCopies, // "ipc_copies": of the copies, those from or to another process's memory
  kIpcGets, // "ipc_gets": handles of memory that were made
  kIpcOpens, // "ipc_opens": handles of memory that were opened, not counting those that were open already
  kIpcEventOpens, // "ipc_event_opens"
  kDeviceAllocations, // "device_allocations"
  kHostAllocations, // "host_allocations"
  kNcclLoads, // "nccl_loads": of NCCL's library, by who asks for its version first
  kNcclSends, // "nccl_sends"
  kNcclReceives, // "nccl_receives"
  kNcclAborts, // "nccl_aborts": communicators that have ended
  kCallbacks, // "callbacks": host functions that have run on streams
  kLaunches, // "launches": kernels that were refused
  kStreamThreads, // "stream_threads"
  kCount
};

/// Thread-safe.
void count(Count kind, uint64_t by = 1);

} // namespace torchwire::cuda_stand_in
