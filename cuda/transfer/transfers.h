// Tensors of messages between devices of workers: which way each takes, and both ends of each way.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/base/thread_pool.h"
#include "backend/codec/tensor_targets.h"
#include "backend/wire/roster.h"
#include "cuda/group_devices.h"
#include "cuda/transfer/device_paths.h"
#include "cuda/transfer/ipc_transfers.h"
#include "cuda/transfer/kept_tensors.h"
#include "cuda/transfer/nccl_transfers.h"
#include "cuda/transfer/outgoing_tensors.h"
#include "cuda/transfer/tensor_ticket.h"
#include "cuda/transfer/transfer_messages.h"

namespace torchwire::cuda {

/// An agent's. Held by shared_ptr: what waits for a device may outlive the agent. Thread-safe.
class Transfers : public std::enable_shared_from_this<Transfers> {
 public:
  using SendAndHear = std::function<void(
      WorkerId to, std::vector<char> body, std::function<void(const std::string& error)>)>;
  struct Hooks {
    /// Sends BlocksDone. Does not wait; what fails is lost.
    std::function<void(WorkerId to, std::vector<char> body)> sendDone;
    /// Sends a TrialRequest, and calls back, on a thread that may block, with the error of its answer; empty if there is none.
    SendAndHear sendTrial;
    /// The same for a LaneTrial and a LaneMessage.
    SendAndHear sendLaneTrial;
    SendAndHear sendLaneMessage;
  };

  /// `copies`: where devices are waited for. `everythingInFrames`: why no elements may travel outside of them; empty: they may.
  /// `leftOut`: paths that are not used.
  Transfers(
      WorkerId self, std::shared_ptr<const GroupDevices> devices,
      std::shared_ptr<ThreadPool> copies, std::string everythingInFrames,
      std::set<DevicePath> leftOut = {});

  /// Before the first message.
  void connect(Hooks hooks);

  /// Begins to send a message's tensors, for the receiver's `devices`, behind what this thread's current streams have still
  /// to do. Waits for no stream. May be called with locks held. Throws c10::Error, without memory for a copy.
  OutgoingTensors begin(WorkerId to, std::vector<at::Tensor> tensors, TensorDevices devices)
      EXCLUDES(ipcMutex_);

  /// Puts the tensors of a message that has come on their devices, on this thread's current streams. Waits for tensors by
  /// NCCL, and for no others. Throws c10::Error that names tensor and device, or FormatError.
  void place(WorkerId from, std::vector<at::Tensor>& tensors, const TensorTargets& targets);

  /// For a message that nobody wants any more.
  void discard(WorkerId from, const std::vector<at::Tensor>& tensors, const TensorTargets& targets);

  /// The connection is lost, or something could not be sent. Does not wait.
  void peerLost(WorkerId peer);
  /// The connection is lost for certain. Does not wait.
  void endLanes(WorkerId peer, const std::string& why);
  /// The agent shuts down: nobody waits for a peer any more.
  void close();

  /// Messages from a peer. Throw FormatError; those of trials wait for a device and throw why the trial has failed.
  void onDone(WorkerId from, const std::vector<char>& body);
  void onTrial(WorkerId from, const std::vector<char>& body);
  void onLaneMessage(WorkerId from, const std::vector<char>& body);
  void onLaneTrial(WorkerId from, const std::vector<char>& body);

  /// Which way large tensors take to the worker, by each entry of the map.
  std::vector<DevicePaths::Explanation> explain(WorkerId peer) const;

  struct Usage {
    size_t keptTensors = 0;
    LentBlocks::Usage lent;
    size_t laneTensors = 0; // kept for receivers by NCCL
  };
  Usage usage() const;

 private:
  struct Fetched;
  struct Arriving;
  struct Placing;

  std::optional<TensorTicket> ticketFor(WorkerId to, const at::Tensor& tensor, c10::Device target);
  TensorTicket keep(c10::Device target, const at::Tensor& tensor);
  void takeBack(WorkerId to, const TensorTicket& ticket);

  at::Tensor fetch(WorkerId from, const TensorTicket& ticket, c10::Device target, Placing& placing);
  at::Tensor copyLent(
      WorkerId from, const TensorTicket& ticket, c10::Device target, std::vector<Fetched>& fetched);
  void tellWhenCopied(WorkerId from, std::vector<Fetched> fetched);

  std::string describe(WorkerId worker) const;
  std::runtime_error cannotPlace(
      size_t index, WorkerId from, c10::Device target, const std::exception& why) const;
  std::optional<std::string> objectionTo(const DeviceRoute& route, DevicePath path) const;
  std::optional<std::string> objectionToNccl(const DeviceRoute& route) const;
  bool isOnThisHost(const DeviceRecord* worker) const; // false where it is null
  void tryPath(const DeviceRoute& route, DevicePath path, uint64_t trial);
  void tryIpc(const DeviceRoute& route, uint64_t trial);
  void tryNccl(const DeviceRoute& route, uint64_t trial);
  void fellBack(const DeviceRoute& route, DevicePath taken, const std::string& why) const;
  IpcTransfers& ipcFor(c10::DeviceType type) EXCLUDES(ipcMutex_);
  NcclTransfers& ncclLanes() EXCLUDES(ipcMutex_);
  NcclTransfers::Hooks ncclHooks();

  const WorkerId self_;
  const std::shared_ptr<const GroupDevices> devices_;
  const std::shared_ptr<ThreadPool> copies_;
  const std::string everythingInFrames_;
  Hooks hooks_;
  DevicePaths paths_;
  KeptTensors kept_;
  Mutex ipcMutex_{LockRank::ipcTransfers};
  std::unique_ptr<IpcTransfers> ownedIpc_ GUARDED_BY(ipcMutex_);
  std::atomic<IpcTransfers*> ipc_{nullptr}; // null until a path by ipc has been tried
  std::unique_ptr<NcclTransfers> ownedNccl_ GUARDED_BY(ipcMutex_);
  std::atomic<NcclTransfers*> nccl_{nullptr}; // null until a path by NCCL has been tried
  bool isClosed_ GUARDED_BY(ipcMutex_) = false;
};

} // namespace torchwire::cuda
