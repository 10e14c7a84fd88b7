// NCCL: communicators of two ranks, each of a process of its own, by which rank 0 sends to rank 1.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "test/support/cuda/cuda_api.h"
#include "test/support/cuda/device.h"
#include "test/support/cuda/faults.h"
#include "test/support/cuda/nccl_communicator.h"
#include "test/support/cuda/statistics.h"
#include "test/support/cuda/stream_table.h"

using namespace torchwire::cuda_stand_in;

namespace {

struct Table {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<NcclCommunicator>> communicators;
  // Which ids of this process are of: until the end, as nobody says when the other rank has come.
  std::map<uint64_t, std::shared_ptr<NcclChannel>> channels;
};

Table& table() {
  static Table& all = *new Table;
  return all;
}

SharedFileName nameIn(const ncclUniqueId& id) {
  SharedFileName name;
  std::memcpy(&name, id.internal, sizeof name);
  return name;
}

std::shared_ptr<NcclChannel> channelOf(const SharedFileName& name) {
  {
    const std::lock_guard lock(table().mutex);
    if (const auto found = table().channels.find(name.inode); found != table().channels.end()) {
      return found->second;
    }
  }
  return NcclChannel::open(name);
}

std::shared_ptr<NcclCommunicator> find(ncclComm_t handle) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().communicators.find(handle);
  return found == table().communicators.end() ? nullptr : found->second;
}

ncclResult_t transfer(
    void* address, size_t count, ncclDataType_t type, bool isPeers, ncclComm_t handle,
    cudaStream_t streamHandle) {
  const auto communicator = find(handle);
  const auto stream = stream_table::find(streamHandle);
  if (communicator == nullptr || stream == nullptr || type != ncclUint8 || !isPeers) {
    return ncclInvalidArgument;
  }
  return communicator->transfer(address, count, stream);
}

} // namespace

ncclResult_t ncclGetVersion(int* version) {
  count(Count::kNcclLoads);
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const auto channel = NcclChannel::make();
  if (channel == nullptr) {
    return ncclSystemError;
  }
  const SharedFileName name = channel->name();
  *id = {};
  std::memcpy(id->internal, &name, sizeof name);
  const std::lock_guard lock(table().mutex);
  table().channels.emplace(name.inode, channel);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* handle, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *handle = nullptr;
  if (takeFault(Fault::kNcclInit) != cudaSuccess) {
    return ncclSystemError;
  }
  const auto channel = channelOf(nameIn(id));
  if (channel == nullptr || ranks != 2 || rank < 0 || rank > 1 || config->blocking != 0) {
    return ncclInvalidArgument;
  }
  use(currentDevice());
  const auto communicator =
      std::make_shared<NcclCommunicator>(channel, rank, machineDevice(currentDevice()));
  *handle = reinterpret_cast<ncclComm_t>(communicator.get());
  {
    const std::lock_guard lock(table().mutex);
    table().communicators.emplace(*handle, communicator);
  }
  return communicator->join();
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const auto communicator = find(handle);
  if (communicator == nullptr) {
    return ncclInvalidArgument;
  }
  *state = communicator->state();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const auto communicator = find(handle);
  if (communicator == nullptr) {
    return ncclInvalidArgument;
  }
  communicator->abort();
  const std::lock_guard lock(table().mutex);
  table().communicators.erase(handle);
  return ncclSuccess;
}

ncclResult_t ncclSend(
    const void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
    cudaStream_t stream) {
  return transfer(const_cast<void*>(address), count, type, peer == 1, handle, stream);
}

ncclResult_t ncclRecv(
    void* address, size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
    cudaStream_t stream) {
  return transfer(address, count, type, peer == 0, handle, stream);
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
}
