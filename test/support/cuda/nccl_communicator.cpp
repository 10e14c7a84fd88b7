#include "test/support/cuda/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "test/support/cuda/address_map.h"
#include "test/support/cuda/faults.h"
#include "test/support/cuda/memory_block.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

namespace torchwire::cuda_stand_in {
namespace {

// Long enough that what does not wait for it is early.
constexpr std::chrono::microseconds kDelay{300};

constexpr int kWrong = 0x5A;

} // namespace

ncclResult_t NcclCommunicator::join() {
  return begin([this] {
    channel_->reach(rank_, NcclChannel::Stage::kJoined, machineDevice_);
    if (!channel_->awaitOther(rank_, NcclChannel::Stage::kJoined, stopped_)) {
      return ncclInternalError;
    }
    const bool isOneGpu = channel_->deviceOf(0) == channel_->deviceOf(1);
    return isOneGpu ? ncclInvalidUsage : ncclSuccess;
  });
}

ncclResult_t NcclCommunicator::transfer(
    void* address, size_t size, const std::shared_ptr<Stream>& stream) {
  count(rank_ == 0 ? Count::kNcclSends : Count::kNcclReceives);
  return begin([this, address, size, stream] { return enqueueTransfer(address, size, stream); });
}

ncclResult_t NcclCommunicator::begin(std::function<ncclResult_t()> work) {
  const std::lock_guard lock(mutex_);
  if (state_ != ncclSuccess || stopped_.load()) {
    return ncclInvalidUsage;
  }
  state_ = ncclInProgress;
  std::thread([self = shared_from_this(), work = std::move(work)] {
    std::this_thread::sleep_for(kDelay);
    const ncclResult_t result = work();
    const std::lock_guard lock(self->mutex_);
    if (self->state_ == ncclInProgress) { // no earlier operation has failed meanwhile
      self->state_ = result;
    }
  }).detach();
  return ncclInProgress;
}

ncclResult_t NcclCommunicator::enqueueTransfer(
    void* address, size_t size, const std::shared_ptr<Stream>& stream) {
  auto block = address_map::find(address);
  if (block == nullptr || !block->isOfDevice() || !block->contains(address, size)) {
    return ncclInvalidArgument;
  }
  if (!isConnected_) {
    channel_->reach(rank_, NcclChannel::Stage::kConnected, machineDevice_);
    if (!channel_->awaitOther(rank_, NcclChannel::Stage::kConnected, stopped_)) {
      return ncclInternalError;
    }
    isConnected_ = true;
  }
  stream_table::enqueue(stream, [self = shared_from_this(), block, address, size] {
    self->run(block->bytesAt(address), size);
  });
  return ncclSuccess;
}

void NcclCommunicator::run(char* bytes, size_t size) {
  bool isDone = false;
  if (takeFault(Fault::kNcclTransfer) != cudaSuccess) {
    // It hangs, and NCCL notices.
  } else if (rank_ == 0) {
    isDone = channel_->send(bytes, size, stopped_);
  } else {
    isDone = channel_->receive(bytes, size, stopped_);
    if (isDone && takeFault(Fault::kNcclWrongBytes) != cudaSuccess) {
      std::memset(bytes, kWrong, size);
    }
  }
  if (isDone) {
    return;
  }
  std::unique_lock lock(mutex_);
  state_ = ncclRemoteError;
  changed_.wait(lock, [&] { return stopped_.load(); });
}

ncclResult_t NcclCommunicator::state() {
  const std::lock_guard lock(mutex_);
  return state_;
}

void NcclCommunicator::abort() {
  const std::lock_guard lock(mutex_);
  stopped_.store(true);
  changed_.notify_all();
  count(Count::kNcclAborts);
}

} // namespace torchwire::cuda_stand_in
