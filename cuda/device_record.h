// What one worker tells its group about its devices: which it has, which it uses, and which of them stands for which
// of a peer's.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/base/bytes.h"

namespace torchwire::cuda {

/// From the devices of one worker to those of another; PyTorch's `torch::distributed::rpc::DeviceMap`.
using DeviceMap = std::unordered_map<c10::Device, c10::Device>;

void writeDevice(ByteWriter& out, c10::Device device);
/// With any index. Throws FormatError for an unknown type.
c10::Device readDevice(ByteReader& in);

/// The entries of a device map in the order in which they are sent and shown.
using DeviceEntries = std::vector<std::pair<c10::Device, c10::Device>>;

/// By type, then by index: the order of devices in lists and texts.
bool comesBefore(c10::Device a, c10::Device b);

/// The device as tensors name it: the cpu is "cpu" for them, never "cpu:0".
c10::Device asOfTensors(c10::Device device);

/// Ordered by source; the devices as the options have them.
DeviceEntries sortedEntries(const DeviceMap& map);

/// What the options of one worker say about devices, and the devices that it has. A value.
struct DeviceRecord {
  std::string name; // of the worker
  std::string host; // that it runs on: the same for the workers of one, until that is booted anew
  std::map<std::string, DeviceMap> maps; // by peer: from this worker's devices to the peer's
  bool automatic =
      false; // device_maps="auto": peers that `maps` does not name get an automatic map
  bool nccl = false; // the option: it may be asked for tensors by NCCL
  bool ncclLeavesHost =
      true; // also by workers of other hosts: what it sends them need not be encrypted
  std::vector<c10::Device> devices; // the option; empty: those that the device maps name
  std::map<c10::DeviceType, c10::DeviceIndex> counts; // of the devices that exist, without the cpu

  /// Whether the worker has this device. All have the cpu, by any index; another device needs one.
  bool has(c10::Device device) const;

  /// Whether device maps may name it: a device that it has and, if it was given `devices`, one of them; or the cpu.
  bool mayUse(c10::Device device) const;

  /// All devices that mayUse() is true for, in order, without the cpu.
  std::vector<c10::Device> usableDevices() const;

  void write(ByteWriter& out) const;
  /// Throws FormatError.
  static DeviceRecord read(ByteReader& in);

  std::vector<char> encode() const;
  /// Throws FormatError, also where bytes are left over.
  static DeviceRecord decode(const std::vector<char>& bytes);
};

} // namespace torchwire::cuda
