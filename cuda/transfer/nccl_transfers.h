// Tensors that go by NCCL.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/random.h"
#include "backend/wire/roster.h"
#include "cuda/transfer/communicator.h"
#include "cuda/transfer/device_paths.h"
#include "cuda/transfer/receiving_lane.h"
#include "cuda/transfer/sending_lane.h"
#include "cuda/transfer/tensor_ticket.h"
#include "cuda/transfer/transfer_messages.h"

namespace torchwire::cuda {

/// This worker's ends of lanes. A route has a lane of its own, which its sender opens with the trial of the path, and which
/// ends with the connection, or at the first error:
///
///     sender                                                  receiver
///     keeps a copy, ticket in the message ──────────────────▶ memory for it, ncclRecv into that
///     ncclSend, in the order of the places ◀── LaneMessage::fetch (place, number)
///     forgets the copy                                        the device has it: goes on
///
/// Thread-safe; calls none of its hooks with a lock held.
class NcclTransfers {
 public:
  struct Hooks {
    /// Does not wait. `done`: with the error of the answer; empty if there is none. On a thread that may block.
    std::function<void(
        WorkerId to, const LaneMessage& message,
        std::function<void(const std::string& error)> done)>
        send;
    /// Runs it on a thread that may wait for devices.
    std::function<void(std::function<void()>)> later;
    /// A lane of this worker's as sender has failed.
    std::function<void(const DeviceRoute& route, const std::string& why)> failed;
  };

  NcclTransfers(Nccl& nccl, Hooks hooks) : nccl_(nccl), hooks_(std::move(hooks)) {}

  // ---- sending ----

  /// A new lane, and what its receiver is to be asked. Throws std::runtime_error.
  std::pair<std::shared_ptr<SendingLane>, LaneTrial> open(const DeviceRoute& route)
      EXCLUDES(mutex_);
  /// Once it has been asked: the sender's part in the trial. Waits for the receiver. Throws with what has failed.
  static void sendTrial(SendingLane& lane, c10::Device from, const LaneTrial& trial);
  /// It is not used any more. Does not wait. `tell`: the receiver does not know.
  void failSending(uint64_t lane, const std::string& why, bool tell) EXCLUDES(mutex_);

  /// None where there is no room for it, or no lane. Throws c10::Error.
  std::optional<TensorTicket> keep(const DeviceRoute& route, const at::Tensor& tensor)
      EXCLUDES(mutex_);
  /// The message with the ticket has not been sent.
  void takeBack(const TensorTicket& ticket) EXCLUDES(mutex_);

  // ---- receiving ----

  /// The receiver's part in the trial of a lane. Waits for the device. Throws with what has failed.
  void onTrial(WorkerId from, const LaneTrial& trial) EXCLUDES(mutex_);

  struct Received {
    std::shared_ptr<ReceivingLane> lane;
    ReceivingLane::Receipt receipt;
    uint64_t laneNumber = 0;
  };
  /// Begins to receive the tensor of a ticket. Throws std::runtime_error or c10::Error.
  Received receive(WorkerId from, const TensorTicket& ticket, c10::Device to) EXCLUDES(mutex_);
  /// Waits until it has come. Throws std::runtime_error.
  void await(WorkerId from, const Received& received) EXCLUDES(mutex_);
  /// Nobody wants the tensor of a ticket.
  void discard(WorkerId from, const TensorTicket& ticket);

  // ---- both ----

  /// Does not wait for a device. Throws FormatError or std::runtime_error.
  void onMessage(WorkerId from, const LaneMessage& message) EXCLUDES(mutex_);

  /// The connection is lost, and with it all lanes to and from the worker. Does not wait.
  void lose(WorkerId peer, const std::string& why) EXCLUDES(mutex_);
  /// All lanes end, and there are no new ones. Does not wait.
  void close(const std::string& why) EXCLUDES(mutex_);

  /// How many tensors are kept for receivers.
  size_t kept() const EXCLUDES(mutex_);

 private:
  struct Sending {
    DeviceRoute route;
    std::shared_ptr<SendingLane> lane;
  };
  using ReceivingKey = std::pair<WorkerId, uint64_t>; // the sender, and the lane's number there

  std::shared_ptr<SendingLane> sendingLane(WorkerId to, uint64_t lane) const EXCLUDES(mutex_);
  std::shared_ptr<ReceivingLane> receivingLane(const ReceivingKey& key) const EXCLUDES(mutex_);
  void failReceiving(const ReceivingKey& key, const std::string& why, bool tell) EXCLUDES(mutex_);
  template <typename IsMeant>
  void endLanes(const std::string& why, IsMeant isMeant) EXCLUDES(mutex_);
  void expectOpen() const REQUIRES(mutex_);
  void tell(WorkerId to, LaneMessage::Kind kind, uint64_t lane, uint64_t kept, std::string error);

  Nccl& nccl_; // lives as long as the process
  const Hooks hooks_;
  mutable Mutex mutex_{LockRank::ncclTransfers};
  // Begins at random: a ticket from before this worker was restarted, which may still come to be used, names none of its lanes.
  uint64_t lastLane_ GUARDED_BY(mutex_) = randomNumber();
  std::map<uint64_t, Sending> sending_ GUARDED_BY(mutex_);
  std::map<ReceivingKey, std::shared_ptr<ReceivingLane>> receiving_ GUARDED_BY(mutex_);
  std::string closed_ GUARDED_BY(mutex_); // why; empty: it is open
};

} // namespace torchwire::cuda
