#include "cuda/device_record.h"

#include <algorithm>

namespace torchwire::cuda {
namespace {

constexpr size_t kDeviceSize = sizeof(c10::DeviceType) + sizeof(c10::DeviceIndex);

c10::DeviceType readType(ByteReader& in) {
  const auto type = in.number<c10::DeviceType>();
  if (!c10::isValidDeviceType(type)) {
    throw FormatError("there is no device type " + std::to_string(static_cast<int>(type)));
  }
  return type;
}

bool readSwitch(ByteReader& in) {
  const auto value = in.number<uint8_t>();
  if (value > 1) {
    throw FormatError("a device record has " + std::to_string(value) + " for yes or no");
  }
  return value == 1;
}

void writeMap(ByteWriter& out, const DeviceMap& map) {
  out.number(static_cast<uint32_t>(map.size()));
  for (const auto& [from, to] : sortedEntries(map)) {
    writeDevice(out, from);
    writeDevice(out, to);
  }
}

DeviceMap readMap(ByteReader& in) {
  DeviceMap map;
  const uint32_t entries = in.count(2 * kDeviceSize);
  for (uint32_t i = 0; i < entries; ++i) {
    const c10::Device from = readDevice(in);
    const c10::Device to = readDevice(in);
    if (!map.emplace(from, to).second) {
      throw FormatError("a device map has two entries for " + from.str());
    }
  }
  return map;
}

void readCounts(ByteReader& in, DeviceRecord& record) {
  const uint32_t types = in.count(kDeviceSize);
  for (uint32_t i = 0; i < types; ++i) {
    const auto type = readType(in);
    const auto count = in.number<c10::DeviceIndex>();
    if (count < 0 || !record.counts.emplace(type, count).second) {
      throw FormatError(
          "a device record has no good count of " + c10::DeviceTypeName(type, /*lower_case=*/true) +
          " devices");
    }
  }
}

void readMaps(ByteReader& in, DeviceRecord& record) {
  const uint32_t peers = in.count(2 * sizeof(uint32_t)); // an empty name, an empty map
  for (uint32_t i = 0; i < peers; ++i) {
    std::string peer = in.string();
    if (!record.maps.emplace(peer, readMap(in)).second) {
      throw FormatError("a device record has two maps for '" + peer + "'");
    }
  }
}

} // namespace

void writeDevice(ByteWriter& out, c10::Device device) {
  out.number(device.type());
  out.number(device.index());
}

c10::Device readDevice(ByteReader& in) {
  c10::Device device(readType(in));
  // Any index, as options may have it ("cuda:200" makes -56, and "cpu:1" exists): the check of the group names what is
  // no device. Not by the constructor, which asserts in a debug build.
  device.set_index(in.number<c10::DeviceIndex>());
  return device;
}

bool comesBefore(c10::Device a, c10::Device b) {
  return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
}

c10::Device asOfTensors(c10::Device device) {
  return device.is_cpu() ? c10::Device(c10::DeviceType::CPU) : device;
}

DeviceEntries sortedEntries(const DeviceMap& map) {
  DeviceEntries entries(map.begin(), map.end());
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return comesBefore(a.first, b.first);
  });
  return entries;
}

bool DeviceRecord::has(c10::Device device) const {
  if (device.is_cpu()) {
    return true;
  }
  const auto count = counts.find(device.type());
  return count != counts.end() && device.index() >= 0 && device.index() < count->second;
}

bool DeviceRecord::mayUse(c10::Device device) const {
  const bool chosen = device.is_cpu() || devices.empty() ||
      std::find(devices.begin(), devices.end(), device) != devices.end();
  return chosen && has(device);
}

std::vector<c10::Device> DeviceRecord::usableDevices() const {
  std::vector<c10::Device> usable;
  for (const auto& [type, count] : counts) {
    for (c10::DeviceIndex index = 0; index < count; ++index) {
      const c10::Device device(type, index);
      if (!device.is_cpu() && mayUse(device)) {
        usable.push_back(device);
      }
    }
  }
  return usable;
}

void DeviceRecord::write(ByteWriter& out) const {
  out.string(name);
  out.string(host);
  out.number(static_cast<uint8_t>(automatic));
  out.number(static_cast<uint8_t>(nccl));
  out.number(static_cast<uint8_t>(ncclLeavesHost));
  out.number(static_cast<uint32_t>(devices.size()));
  for (const c10::Device& device : devices) {
    writeDevice(out, device);
  }
  out.number(static_cast<uint32_t>(counts.size()));
  for (const auto& [type, count] : counts) {
    out.number(type);
    out.number(count);
  }
  out.number(static_cast<uint32_t>(maps.size()));
  for (const auto& [peer, map] : maps) {
    out.string(peer);
    writeMap(out, map);
  }
}

DeviceRecord DeviceRecord::read(ByteReader& in) {
  DeviceRecord record;
  record.name = in.string();
  record.host = in.string();
  record.automatic = readSwitch(in);
  record.nccl = readSwitch(in);
  record.ncclLeavesHost = readSwitch(in);
  const uint32_t given = in.count(kDeviceSize);
  for (uint32_t i = 0; i < given; ++i) {
    record.devices.push_back(readDevice(in));
  }
  readCounts(in, record);
  readMaps(in, record);
  return record;
}

std::vector<char> DeviceRecord::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  write(out);
  return bytes;
}

DeviceRecord DeviceRecord::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  DeviceRecord record = read(in);
  if (in.remaining() != 0) {
    throw FormatError(
        "a device record is followed by " + std::to_string(in.remaining()) +
        " bytes that are not its own");
  }
  return record;
}

} // namespace torchwire::cuda
