// One end of a lane: a communicator of NCCL's by which one worker's device sends to another's.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "backend/base/annotations.h"
#include "cuda/transfer/communicator.h"

namespace torchwire::cuda {

/// What both ends have in common: operations are given to NCCL one after another, and a lane that has failed does nothing any
/// more. NCCL tells nobody that something is done or has failed, so whoever waits looks from time to time. Thread-safe.
class LaneEnd {
 public:
  /// How long NCCL may take to make a communicator, and to connect its ends at the first transfer.
  static constexpr std::chrono::seconds kSetUpLimit{20};

  explicit LaneEnd(std::unique_ptr<Communicator> communicator)
      : stream_(communicator->stream()), communicator_(std::move(communicator)) {}
  virtual ~LaneEnd() = default;
  LaneEnd(const LaneEnd&) = delete;
  LaneEnd& operator=(const LaneEnd&) = delete;

  /// Waits until both ends have made the communicator. Throws std::runtime_error, also where the lane has failed meanwhile.
  void awaitPeer() EXCLUDES(mutex_);

  /// Who waits for the lane is told why, and nobody uses it any more. Does not wait. Returns whether it was the first time.
  bool fail(const std::string& why) EXCLUDES(errorMutex_);
  bool hasFailed() const {
    return failed_;
  }
  std::string whyFailed() const EXCLUDES(errorMutex_);

  /// Once it has failed: ends what its device has begun. May wait for the device.
  void abort() EXCLUDES(mutex_);

 protected:
  /// Gives an operation to NCCL and waits until the device has it; for that NCCL needs no peer once the ends are connected.
  /// Fails the lane if that fails, and throws std::runtime_error.
  void issue(const std::function<void(Communicator&)>& operation) REQUIRES(mutex_);
  /// Fails the lane if NCCL says that something has gone wrong.
  void checkHealth() EXCLUDES(mutex_);
  void expectWorking() const;

  const c10::Stream stream_;
  Mutex mutex_{LockRank::ncclLane};

 private:
  using Time = std::chrono::steady_clock::time_point;

  bool isReady() EXCLUDES(mutex_);

  std::unique_ptr<Communicator> communicator_ GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  mutable Mutex errorMutex_{LockRank::ncclLaneError};
  std::string error_ GUARDED_BY(errorMutex_);
};

/// For looks at something that is not to be waited for in another way: soon at first, then ever more seldom.
class Patience {
 public:
  void wait();

 private:
  std::chrono::microseconds pause_{10};
};

} // namespace torchwire::cuda
