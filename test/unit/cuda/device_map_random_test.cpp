// Groups drawn at random: the check finds what a naive one finds, and what it lets pass has the properties that calls
// rely on.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include "cuda/device_map_check.h"
#include "cuda/device_maps.h"
#include "test/unit/cuda/sample_devices.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;
using namespace torchwire::cuda;

namespace {

using Group = std::vector<DeviceRecord>;
using Random = std::mt19937;

const std::vector<std::string> kNames = {"a", "b", "c", "d"};

/// Mostly a device that exists somewhere, sometimes the cpu, seldom nonsense.
c10::Device drawDevice(Random& random) {
  switch (random() % 24) {
    case 0:
      return kCpu;
    case 1:
      return {c10::DeviceType::CPU, 0};
    case 2:
      return xpu(0);
    case 3:
      return random() % 4 == 0 ? gpu(-1) : gpu(3);
    default:
      return gpu(static_cast<int>(random() % 3));
  }
}

DeviceRecord drawWorker(const std::string& name, Random& random) {
  DeviceRecord record = worker(name, static_cast<int>(2 + random() % 3));
  if (random() % 8 == 0) {
    record.counts.erase(c10::DeviceType::CUDA);
  }
  if (random() % 4 == 0) {
    record.counts[c10::DeviceType::XPU] = 1;
  }
  record.automatic = random() % 4 == 0;
  const size_t devices = random() % 3 == 0 ? random() % 4 : 0;
  for (size_t i = 0; i < devices; ++i) {
    record.devices.push_back(random() % 4 == 0 ? drawDevice(random) : gpu(static_cast<int>(i)));
  }
  const size_t maps = random() % 3;
  for (size_t i = 0; i < maps; ++i) {
    DeviceMap& map = record.maps[random() % 16 == 0 ? "nobody" : kNames[random() % kNames.size()]];
    const size_t entries = random() % 3;
    for (size_t entry = 0; entry < entries; ++entry) {
      map.emplace(drawDevice(random), drawDevice(random));
    }
  }
  return record;
}

Group drawGroup(Random& random) {
  Group group;
  const size_t size = 1 + random() % kNames.size();
  for (size_t i = 0; i < size; ++i) {
    group.push_back(drawWorker(kNames[i], random));
  }
  return group;
}

// ---- The naive check: the rules as one would say them, on lists, without a word about how to print them ----

bool exists(const DeviceRecord& worker, c10::Device device) {
  if (device.type() == c10::DeviceType::CPU) {
    return true;
  }
  for (const auto& [type, count] : worker.counts) {
    for (int index = 0; index < count; ++index) {
      if (type == device.type() && index == device.index()) {
        return true;
      }
    }
  }
  return false;
}

bool isListed(const DeviceRecord& worker, c10::Device device) {
  return device.type() == c10::DeviceType::CPU ||
      std::count(worker.devices.begin(), worker.devices.end(), device) > 0;
}

/// Whether two of the devices are the same; all names of the cpu are the cpu.
bool hasTwice(const std::vector<c10::Device>& devices) {
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool cpus = devices[i].is_cpu() && devices[j].is_cpu();
      if (cpus || devices[i] == devices[j]) {
        return true;
      }
    }
  }
  return false;
}

size_t typesAmong(const std::vector<c10::Device>& devices) {
  std::set<c10::DeviceType> types;
  for (const c10::Device& device : devices) {
    if (!device.is_cpu()) {
      types.insert(device.type());
    }
  }
  return types.size();
}

std::string naiveDevices(const DeviceRecord& worker) {
  const std::set<std::string> different = [&] {
    std::set<std::string> names;
    for (const c10::Device& device : worker.devices) {
      names.insert(device.str());
    }
    return names;
  }();
  if (different.size() != worker.devices.size()) {
    return "Node " + worker.name + " has duplicated devices:";
  }
  for (const c10::Device& device : worker.devices) {
    if (!exists(worker, device)) {
      return "Node " + worker.name + " has devices with invalid indices:";
    }
  }
  return typesAmong(worker.devices) > 1 ? "Node " + worker.name + " has devices of different types:"
                                        : "";
}

/// What is wrong with the devices on one side of a map, all on `worker`.
std::string naiveSide(
    const DeviceRecord& worker, const std::vector<c10::Device>& devices, const std::string& side) {
  for (const c10::Device& device : devices) {
    if (!worker.devices.empty() && !isListed(worker, device)) {
      return "unexpected " + side + " devices";
    }
    if (worker.devices.empty() && !exists(worker, device)) {
      return side + " devices with invalid indices";
    }
  }
  return "";
}

const DeviceRecord* find(const Group& group, const std::string& name) {
  for (const DeviceRecord& worker : group) {
    if (worker.name == name) {
      return &worker;
    }
  }
  return nullptr;
}

std::string naiveMap(const Group& group, const DeviceRecord& self, const std::string& peer) {
  std::vector<c10::Device> sources;
  std::vector<c10::Device> targets;
  for (const auto& [from, to] : self.maps.at(peer)) {
    sources.push_back(from);
    targets.push_back(to);
  }
  if (hasTwice(sources)) {
    return "duplicated source devices";
  }
  if (hasTwice(targets)) {
    return "duplicated target devices";
  }
  const std::string own = naiveSide(self, sources, "source");
  const DeviceRecord* other = find(group, peer);
  return !own.empty() || other == nullptr ? own : naiveSide(*other, targets, "target");
}

std::string naiveMaps(const Group& group, const DeviceRecord& self, bool complete) {
  for (const auto& [peer, map] : self.maps) {
    if (complete && find(group, peer) == nullptr) {
      return "Node " + self.name + " has invalid target node names in its device maps:";
    }
  }
  for (const auto& [peer, map] : self.maps) {
    const std::string wrong = naiveMap(group, self, peer);
    if (!wrong.empty()) {
      return "Node " + self.name + " has " + wrong + " in its device map for " + peer + ":";
    }
  }
  return "";
}

/// The devices of `from` that lead to each other, whether a map says so or "auto".
std::vector<std::pair<c10::Device, c10::Device>> naivePairs(
    const DeviceRecord& from, const DeviceRecord& to) {
  std::vector<std::pair<c10::Device, c10::Device>> pairs;
  if (from.maps.count(to.name) > 0) {
    for (const auto& [source, target] : from.maps.at(to.name)) {
      pairs.emplace_back(source, target);
    }
    return pairs;
  }
  for (const c10::Device& device : {gpu(0), gpu(1), gpu(2), gpu(3), xpu(0)}) {
    const bool here = exists(from, device) && (from.devices.empty() || isListed(from, device));
    const bool there = exists(to, device) && (to.devices.empty() || isListed(to, device));
    if (from.automatic && here && there) {
      pairs.emplace_back(device, device);
    }
  }
  return pairs;
}

std::vector<c10::Device> naiveInferred(const Group& group, const DeviceRecord& self) {
  std::vector<c10::Device> devices;
  for (const auto& [peer, map] : self.maps) {
    for (const auto& [own, theirs] : map) {
      devices.push_back(own);
    }
  }
  for (const DeviceRecord& peer : group) {
    for (const auto& [own, theirs] : naivePairs(self, peer)) {
      devices.push_back(own);
    }
    for (const auto& [theirs, own] : naivePairs(peer, self)) {
      devices.push_back(own);
    }
  }
  return devices;
}

/// The first line of what is wrong, or "". The group is in the order of names.
std::string naiveObjection(const Group& group, bool complete) {
  for (const DeviceRecord& worker : group) {
    const std::string wrong = naiveDevices(worker);
    if (!wrong.empty()) {
      return wrong;
    }
  }
  for (const DeviceRecord& worker : group) {
    const std::string wrong = naiveMaps(group, worker, complete);
    if (!wrong.empty()) {
      return wrong;
    }
  }
  for (const DeviceRecord& worker : group) {
    if (worker.devices.empty() && typesAmong(naiveInferred(group, worker)) > 1) {
      return "Node " + worker.name + " has devices of different types:";
    }
  }
  return "";
}

// ---- What has to hold ----

/// In a group that passes: the two directions of a map are inverse, keep to what both use, and are on the devices that
/// the workers say they use.
void checkMaps(const Group& group) {
  for (const DeviceRecord& a : group) {
    for (const DeviceRecord& b : group) {
      const DeviceMap there = mapTo(a, b);
      const DeviceMap back = reverseMapFrom(b, a);
      REQUIRE(there.size() == naivePairs(a, b).size());
      REQUIRE(back.size() == there.size());
      const std::vector<c10::Device> ofA = devicesOf(a, group);
      const std::vector<c10::Device> ofB = devicesOf(b, group);
      for (const auto& [from, to] : there) {
        REQUIRE(back.at(to) == from);
        REQUIRE((from.is_cpu() || std::count(ofA.begin(), ofA.end(), from) == 1));
        REQUIRE((to.is_cpu() || std::count(ofB.begin(), ofB.end(), to) == 1));
      }
    }
  }
}

void checkDevices(const Group& group) {
  for (const DeviceRecord& worker : group) {
    const std::vector<c10::Device> devices = devicesOf(worker, group);
    REQUIRE(typesAmong(devices) <= 1);
    REQUIRE(std::is_sorted(devices.begin(), devices.end(), comesBefore));
    REQUIRE_FALSE(hasTwice(devices));
    for (const c10::Device& device : devices) {
      REQUIRE_FALSE(device.is_cpu());
      REQUIRE(worker.has(device));
    }
  }
}

Group throughTheStore(const Group& group) {
  Group received;
  for (const DeviceRecord& record : group) {
    received.push_back(DeviceRecord::decode(record.encode()));
  }
  return received;
}

} // namespace

TEST_CASE("the check of random groups finds what a naive one finds", "[device_map_random]") {
  size_t fine = 0;
  std::set<std::string> kinds; // of objections: their words, without those that name a peer
  for (const unsigned seed : seeds(20000)) {
    CAPTURE(seed);
    Random random(seed);
    const Group group = drawGroup(random);
    const bool complete = random() % 2 == 0;
    const std::string text = objectionTo(group, complete).value_or("");
    REQUIRE(text.substr(0, text.find('\n')) == naiveObjection(group, complete));
    Group received = throughTheStore(group);
    std::shuffle(received.begin(), received.end(), random);
    REQUIRE(objectionTo(received, complete).value_or("") == text);
    if (text.empty()) {
      ++fine;
      checkMaps(group);
      checkDevices(group);
    } else {
      const std::string what = text.substr(std::string("Node a has ").size());
      kinds.insert(what.substr(0, std::min(what.find(":\n"), what.find(" in its device map for"))));
    }
  }
  if (std::getenv("TORCHWIRE_TEST_SEED") == nullptr) {
    CHECK(fine > 1000);
    CHECK(kinds.size() == 10); // each of the words that the header of the check speaks of
  }
}
