// Which device of each worker stands for which of this worker's.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/codec/codec.h"
#include "backend/wire/roster.h"
#include "cuda/device_maps.h"
#include "cuda/device_record.h"
#include "cuda/unmapped_tensor.h"

namespace torchwire::cuda {

/// What the workers of a group, as far as they have been heard of, say of their devices. Thread-safe; what only asks takes
/// no lock. References that it hands out stay valid for its life.
class GroupDevices {
 public:
  explicit GroupDevices(DeviceRecord self);

  /// As others are to read it in this worker's WorkerRecord; empty where there is nothing to tell.
  std::string encodedSelf() const;

  /// Other workers of the group, or this one, too. Throws FormatError.
  void add(const std::vector<WorkerRecord>& workers) EXCLUDES(mutex_);

  /// It has left: its maps bind nobody any more.
  void remove(WorkerId worker) EXCLUDES(mutex_);

  /// What is wrong with the devices of those that have been added; see device_map_check.h.
  std::optional<std::string> objection(bool complete) const EXCLUDES(mutex_);

  /// What would be wrong in a dynamic group if this worker were added. Throws FormatError.
  std::optional<std::string> objectionTo(const WorkerRecord& worker) const EXCLUDES(mutex_);

  /// This worker's devices that calls use, without the CPU.
  const std::vector<c10::Device>& used() const {
    return latest_.load()->used;
  }

  /// Throws FormatError where a message is for a device that calls do not use.
  void expectUsed(const TensorDevices& targets) const;

  /// What the worker says of its devices; null if it has not been heard of.
  const DeviceRecord* record(WorkerId worker) const;

  /// For requests to the worker, or for responses: its device for each of this worker's.
  const DeviceMap& mapTo(WorkerId worker, Direction direction) const;

  /// The worker's devices for the tensors of a message; empty: all are for the CPU. By `given`, unless that is null.
  /// Throws c10::Error, of noMapping(), for a tensor that has none.
  TensorDevices targets(
      WorkerId worker, Direction direction, const std::vector<at::Tensor>& tensors,
      const DeviceMap* given = nullptr) const;

  /// What a call of the worker to this one failed with, with the remedy where devices are the cause; see withRemedy().
  std::string withRemedy(WorkerId caller, std::string error) const;

  const DeviceRecord& self() const {
    return self_;
  }

 private:
  struct Peer {
    DeviceRecord record;
    DeviceMap maps[2]; // by Direction
  };
  /// Never changed once others see it.
  struct State {
    std::map<WorkerId, std::shared_ptr<const Peer>> peers;
    std::vector<c10::Device> used;
    bool mapsNothing = true;
  };

  DeviceRecord recordOrName(WorkerId worker) const;

  const DeviceRecord self_;
  mutable Mutex mutex_{LockRank::groupDevices};
  // All there have been, because others may still look at them: one for the workers that were there, and one for each that
  // has joined since.
  std::vector<std::unique_ptr<const State>> states_ GUARDED_BY(mutex_);
  std::atomic<const State*> latest_;
};

} // namespace torchwire::cuda
