#include "cuda/device_maps.h"

#include <algorithm>

namespace torchwire::cuda {
namespace {

DeviceMap automaticMap(const DeviceRecord& self, const DeviceRecord& peer) {
  DeviceMap map;
  for (const c10::Device& device : self.usableDevices()) {
    if (peer.mayUse(device)) {
      map.emplace(device, device);
    }
  }
  return map;
}

std::vector<c10::Device> namedByMaps(
    const DeviceRecord& self, const std::vector<DeviceRecord>& group) {
  std::vector<c10::Device> named;
  for (const auto& [peer, map] : self.maps) { // also for workers that are not there yet
    for (const auto& [own, theirs] : map) {
      named.push_back(own);
    }
  }
  for (const DeviceRecord& peer : group) {
    for (const auto& [own, theirs] : mapTo(self, peer)) {
      named.push_back(own);
    }
    for (const auto& [theirs, own] : mapTo(peer, self)) {
      named.push_back(own);
    }
  }
  return named;
}

} // namespace

DeviceMap mapTo(const DeviceRecord& self, const DeviceRecord& peer) {
  const auto given = self.maps.find(peer.name);
  if (given == self.maps.end()) {
    return self.automatic ? automaticMap(self, peer) : DeviceMap();
  }
  DeviceMap map;
  for (const auto& [own, theirs] : given->second) {
    map.emplace(asOfTensors(own), asOfTensors(theirs));
  }
  return map;
}

DeviceMap reverseMapFrom(const DeviceRecord& self, const DeviceRecord& peer) {
  DeviceMap reverse;
  for (const auto& [theirs, own] : mapTo(peer, self)) {
    reverse.emplace(own, theirs);
  }
  return reverse;
}

std::vector<c10::Device> devicesOf(
    const DeviceRecord& self, const std::vector<DeviceRecord>& group) {
  std::vector<c10::Device> devices = self.devices.empty() ? namedByMaps(self, group) : self.devices;
  // Nor what the map of a worker that is about to be refused names.
  std::erase_if(devices, [&](c10::Device device) { return device.is_cpu() || !self.has(device); });
  std::sort(devices.begin(), devices.end(), comesBefore);
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

} // namespace torchwire::cuda
