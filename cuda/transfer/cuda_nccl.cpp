// NCCL's communicators. In the library that is compiled against CUDA: see cuda_library.h.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <stdexcept>

#include "cuda/transfer/communicator.h"
#include "cuda/transfer/cuda_check.h"
#include "cuda/transfer/nccl_functions.h"

namespace torchwire::cuda {
namespace {

// Of a GPU's multiprocessors, by a transfer, also while it waits for the other end: so that many lanes find room at a time.
constexpr int kMostBlocks = 4;

ncclUniqueId idIn(const std::string& bytes) {
  ncclUniqueId id;
  if (bytes.size() != sizeof id.internal) {
    throw std::runtime_error("an id of NCCL's has " + std::to_string(bytes.size()) + " bytes");
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

/// A stream that nobody else gets, unlike those of PyTorch's pools: what waits for a peer must not be in the way of the
/// program's. Of high priority for sends, as those of other lanes' receives must not be in the way either.
class OwnedStream {
 public:
  OwnedStream(c10::DeviceIndex device, bool highPriority) : device_(device) {
    const c10::cuda::CUDAGuard guard(device);
    int lowest = 0;
    int highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check(
        cudaStreamCreateWithPriority(
            &stream_, cudaStreamNonBlocking, highPriority ? highest : lowest),
        "cudaStreamCreateWithPriority");
  }
  ~OwnedStream() {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      (void)cudaStreamDestroy(stream_);
      (void)cudaGetLastError();
    } catch (const std::exception&) { // of the guard's, on a device that is lost
    }
  }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  cudaStream_t get() const {
    return stream_;
  }

 private:
  const c10::DeviceIndex device_;
  cudaStream_t stream_ = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(
      const NcclFunctions& functions, c10::DeviceIndex device, Rank rank, const std::string& id)
      : functions_(functions), device_(device), stream_(device, rank == Rank::sender) {
    const c10::cuda::CUDAGuard guard(device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0; // else a peer that does not come would hold the thread for ever
    config.minCTAs = 1;
    config.maxCTAs = kMostBlocks;
    const ncclResult_t result = functions_.commInitRankConfig(
        &communicator_, /* nranks */ 2, idIn(id), static_cast<int>(rank), &config);
    try {
      functions_.check(result, "ncclCommInitRankConfig", nullptr);
    } catch (...) {
      abort();
      throw;
    }
  }
  ~NcclCommunicator() override {
    abort();
  }

  bool isReady() override {
    ncclResult_t state = ncclSuccess;
    functions_.check(
        functions_.commGetAsyncError(communicator_, &state), "ncclCommGetAsyncError",
        communicator_);
    functions_.check(state, "NCCL", communicator_);
    return state == ncclSuccess;
  }

  void send(const void* data, size_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    functions_.check(
        functions_.send(
            data, bytes, ncclUint8, static_cast<int>(Rank::receiver), communicator_, stream_.get()),
        "ncclSend", communicator_);
  }

  void receive(void* data, size_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    functions_.check(
        functions_.receive(
            data, bytes, ncclUint8, static_cast<int>(Rank::sender), communicator_, stream_.get()),
        "ncclRecv", communicator_);
  }

  c10::Stream stream() const override {
    return c10::cuda::getStreamFromExternal(stream_.get(), device_).unwrap();
  }

  void abort() noexcept override {
    if (communicator_ == nullptr) {
      return;
    }
    try {
      const c10::cuda::CUDAGuard guard(device_);
      (void)functions_.commAbort(communicator_);
      (void)cudaGetLastError();
    } catch (const std::exception&) { // of the guard's, on a device that is lost
    }
    communicator_ = nullptr;
  }

 private:
  const NcclFunctions& functions_;
  const c10::DeviceIndex device_;
  const OwnedStream stream_;
  ncclComm_t communicator_ = nullptr;
};

class TorchsNccl final : public Nccl {
 public:
  std::string newId() override {
    ncclUniqueId id;
    functions_.check(functions_.getUniqueId(&id), "ncclGetUniqueId", nullptr);
    return {id.internal, sizeof id.internal};
  }

  std::string gpuId(c10::DeviceIndex device) override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return {properties.uuid.bytes, sizeof properties.uuid.bytes};
  }

  std::unique_ptr<Communicator> begin(
      c10::DeviceIndex device, Communicator::Rank rank, const std::string& id) override {
    return std::make_unique<NcclCommunicator>(functions_, device, rank, id);
  }

 private:
  const NcclFunctions functions_ = NcclFunctions::load();
};

} // namespace
} // namespace torchwire::cuda

/// The entry point. Null, and why, where there is no NCCL.
extern "C" __attribute__((visibility("default"))) torchwire::cuda::Nccl* torchwireNccl(
    std::string& error) {
  static std::unique_ptr<torchwire::cuda::Nccl> nccl;
  try {
    nccl = std::make_unique<torchwire::cuda::TorchsNccl>();
  } catch (const std::exception& e) {
    error = e.what();
  }
  return nccl.get();
}
