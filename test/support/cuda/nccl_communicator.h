// A communicator of two ranks, as one of them has it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

#include "test/support/cuda/nccl_channel.h"
#include "test/support/cuda/stream.h"

namespace torchwire::cuda_stand_in {

/// As one that was made with blocking=0: what is begun reaches the stream some time later, by a thread of the communicator's;
/// state() is ncclInProgress until then, and nothing else may be begun. The first transfer reaches it only once the other rank
/// has begun its own. Thread-safe.
class NcclCommunicator : public std::enable_shared_from_this<NcclCommunicator> {
 public:
  NcclCommunicator(std::shared_ptr<NcclChannel> channel, int rank, int machineDevice)
      : channel_(std::move(channel)), rank_(rank), machineDevice_(machineDevice) {}

  ncclResult_t join();
  /// Of memory of a device.
  ncclResult_t transfer(void* address, size_t size, const std::shared_ptr<Stream>& stream);
  ncclResult_t state();
  /// What streams run of it, and are still to, ends at once. Does not wait for that.
  void abort();

 private:
  ncclResult_t begin(std::function<ncclResult_t()> work);
  ncclResult_t enqueueTransfer(void* address, size_t size, const std::shared_ptr<Stream>& stream);
  void run(char* bytes, size_t size);

  const std::shared_ptr<NcclChannel> channel_;
  const int rank_;
  const int machineDevice_;
  NcclChannel::Stopped stopped_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  ncclResult_t state_ = ncclSuccess;
  bool isConnected_ = false;
};

} // namespace torchwire::cuda_stand_in
