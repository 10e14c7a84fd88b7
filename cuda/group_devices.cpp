#include "cuda/group_devices.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "cuda/device_map_check.h"

namespace torchwire::cuda {
namespace {

DeviceRecord recordOf(const WorkerRecord& worker) {
  DeviceRecord record = worker.devices.empty()
      ? DeviceRecord()
      : DeviceRecord::decode({worker.devices.begin(), worker.devices.end()});
  record.name = worker.name;
  return record;
}

template <typename Peers>
std::vector<DeviceRecord> recordsOf(const Peers& peers) {
  std::vector<DeviceRecord> records;
  for (const auto& [id, peer] : peers) {
    records.push_back(peer->record);
  }
  return records;
}

bool isOnCpu(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_cpu();
}

} // namespace

GroupDevices::GroupDevices(DeviceRecord self) : self_(std::move(self)) {
  states_.push_back(std::make_unique<const State>());
  latest_ = states_.back().get();
}

std::string GroupDevices::encodedSelf() const {
  if (self_.maps.empty() && !self_.automatic && self_.devices.empty() && self_.counts.empty()) {
    return {};
  }
  const std::vector<char> bytes = self_.encode();
  return {bytes.begin(), bytes.end()};
}

void GroupDevices::add(const std::vector<WorkerRecord>& workers) {
  std::map<WorkerId, std::shared_ptr<const Peer>> added;
  for (const WorkerRecord& worker : workers) {
    DeviceRecord record = recordOf(worker);
    DeviceMap forwards = torchwire::cuda::mapTo(self_, record);
    DeviceMap backwards = reverseMapFrom(self_, record);
    added[worker.id] = std::make_shared<const Peer>(
        Peer{std::move(record), {std::move(forwards), std::move(backwards)}});
  }
  const MutexLock lock(mutex_);
  auto next = std::make_unique<State>(*latest_.load());
  for (auto& [id, peer] : added) {
    next->mapsNothing = next->mapsNothing && peer->maps[0].empty() && peer->maps[1].empty();
    next->peers.insert_or_assign(id, std::move(peer));
  }
  next->used = devicesOf(self_, recordsOf(next->peers));
  latest_ = next.get();
  states_.push_back(std::move(next));
}

void GroupDevices::remove(WorkerId worker) {
  const MutexLock lock(mutex_);
  auto next = std::make_unique<State>(*latest_.load());
  next->peers.erase(worker); // its devices stay used: values may still be there
  latest_ = next.get();
  states_.push_back(std::move(next));
}

std::optional<std::string> GroupDevices::objection(bool complete) const {
  return torchwire::cuda::objectionTo(recordsOf(latest_.load()->peers), complete);
}

std::optional<std::string> GroupDevices::objectionTo(const WorkerRecord& worker) const {
  auto peers = latest_.load()->peers;
  peers.insert_or_assign(worker.id, std::make_shared<const Peer>(Peer{recordOf(worker), {}}));
  return torchwire::cuda::objectionTo(recordsOf(peers), /* complete */ false);
}

void GroupDevices::expectUsed(const TensorDevices& targets) const {
  const auto& devices = used();
  for (const c10::Device target : targets) {
    if (!target.is_cpu() && std::find(devices.begin(), devices.end(), target) == devices.end()) {
      throw FormatError(
          "a tensor is for " + target.str() + " of worker '" + self_.name +
          "', which no device map names");
    }
  }
}

const DeviceRecord* GroupDevices::record(WorkerId worker) const {
  const State& state = *latest_.load();
  const auto peer = state.peers.find(worker);
  return peer == state.peers.end() ? nullptr : &peer->second->record;
}

const DeviceMap& GroupDevices::mapTo(WorkerId worker, Direction direction) const {
  static const DeviceMap none;
  const State& state = *latest_.load();
  const auto peer = state.peers.find(worker);
  return peer == state.peers.end() ? none : peer->second->maps[static_cast<int>(direction)];
}

TensorDevices GroupDevices::targets(
    WorkerId worker, Direction direction, const std::vector<at::Tensor>& tensors,
    const DeviceMap* given) const {
  const State& state = *latest_.load();
  if (tensors.empty() ||
      (state.mapsNothing && given == nullptr &&
       std::all_of(tensors.begin(), tensors.end(), isOnCpu))) {
    return {};
  }
  const DeviceMap& map = given != nullptr ? *given : mapTo(worker, direction);
  TensorDevices targets;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const c10::Device device =
        tensors[i].defined() ? asOfTensors(tensors[i].device()) : c10::Device(c10::kCPU);
    const auto entry = map.find(device);
    if (entry != map.end()) {
      targets.push_back(asOfTensors(entry->second));
    } else if (device.is_cpu()) {
      targets.push_back(device);
    } else {
      TORCH_CHECK(false, noMapping({direction, i, device}, self_, recordOrName(worker)));
    }
  }
  const bool onCpu = std::all_of(
      targets.begin(), targets.end(), [](c10::Device device) { return device.is_cpu(); });
  return onCpu ? TensorDevices() : targets;
}

std::string GroupDevices::withRemedy(WorkerId caller, std::string error) const {
  return torchwire::cuda::withRemedy(std::move(error), self_, recordOrName(caller));
}

DeviceRecord GroupDevices::recordOrName(WorkerId worker) const {
  if (const DeviceRecord* known = record(worker)) {
    return *known;
  }
  DeviceRecord unknown;
  unknown.name = std::to_string(worker);
  return unknown;
}

} // namespace torchwire::cuda
