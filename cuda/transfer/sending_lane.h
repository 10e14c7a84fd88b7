// The end of a lane that sends.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "cuda/transfer/fetch_order.h"
#include "cuda/transfer/lane_end.h"
#include "cuda/transfer/tensor_ticket.h"

namespace torchwire::cuda {

/// Keeps a copy of each tensor, made in the order of the program's current stream, so that the program may change the tensor
/// as soon as it has been sent; when the receiver asks for it, the copy is sent behind that, on the lane's stream. The host
/// waits for neither. Thread-safe.
class SendingLane final : public LaneEnd {
 public:
  /// Of copies at a time; or one that is larger.
  static constexpr size_t kMostBytes = 512 << 20;

  SendingLane(uint64_t number, std::unique_ptr<Communicator> communicator)
      : LaneEnd(std::move(communicator)), number_(number) {}

  uint64_t number() const {
    return number_;
  }

  /// None where there is no room for it, or the lane has failed. Waits for nothing. Throws c10::Error.
  std::optional<TensorTicket> keep(const at::Tensor& tensor) EXCLUDES(keptMutex_);
  /// Nobody will ask for it. Unknown ones are ignored.
  void drop(uint64_t kept) EXCLUDES(keptMutex_);
  /// All that is kept. For a lane that has failed.
  void dropAll() EXCLUDES(keptMutex_);

  /// The receiver asks for a tensor, in this place. Throws std::runtime_error, after which the lane has failed.
  void fetch(uint64_t sequence, uint64_t kept) EXCLUDES(mutex_);

  /// Sends a tensor of the lane's trial unasked: NCCL connects the two ends when both have begun their first transfer. Waits
  /// for that, not for the elements, which are those of this thread's current stream. Throws std::runtime_error.
  void sendFirst(const at::Tensor& tensor) EXCLUDES(mutex_);

  size_t kept() const EXCLUDES(keptMutex_);

 private:
  struct Kept {
    at::Tensor tensor;
    c10::Event filled;
  };

  bool reserve(size_t bytes) EXCLUDES(keptMutex_);
  std::optional<Kept> take(uint64_t kept) EXCLUDES(keptMutex_);
  bool sendNext() REQUIRES(mutex_);
  void send(const Kept& kept) REQUIRES(mutex_);

  const uint64_t number_;
  FetchOrder order_ GUARDED_BY(mutex_);
  bool isConnected_ GUARDED_BY(mutex_) = false;
  mutable Mutex keptMutex_{LockRank::ncclKept};
  uint64_t lastKept_ GUARDED_BY(keptMutex_) = 0;
  size_t bytes_ GUARDED_BY(keptMutex_) = 0;
  std::map<uint64_t, Kept> kept_ GUARDED_BY(keptMutex_);
};

} // namespace torchwire::cuda
