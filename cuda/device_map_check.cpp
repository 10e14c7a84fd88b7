#include "cuda/device_map_check.h"

#include <algorithm>
#include <map>
#include <set>

#include "cuda/device_maps.h"
#include "cuda/device_text.h"
#include "cuda/suggestion.h"

namespace torchwire::cuda {
namespace {

using Objection = std::optional<std::string>;
using Group = std::map<std::string, const DeviceRecord*>;

/// One for each entry of what is looked at; empty where that is right.
using Notes = std::vector<std::string>;

bool anyIn(const Notes& notes) {
  return std::any_of(
      notes.begin(), notes.end(), [](const std::string& note) { return !note.empty(); });
}

/// "cuda", where there are devices of this type.
bool lacksOnlyIndex(const DeviceRecord& worker, c10::Device device) {
  return !device.has_index() && worker.has({device.type(), 0});
}

/// Why there is no such device, in words that say which there are.
std::string absence(const DeviceRecord& worker, c10::Device device) {
  if (lacksOnlyIndex(worker, device)) {
    return "has no index; write " + typeName(device.type()) + ":0, for example";
  }
  return countInWords(worker, device.type());
}

/// What may help with devices that are absent.
std::string hintFor(const DeviceRecord& worker, const std::vector<c10::Device>& absent) {
  bool beyondLast = false;
  bool cuda = false;
  for (const c10::Device& device : absent) {
    beyondLast = beyondLast || (device.has_index() && worker.has({device.type(), 0}));
    cuda = cuda || (device.is_cuda() && !lacksOnlyIndex(worker, device));
  }
  return std::string(beyondLast ? " Indices begin at 0." : "") +
      (cuda ? " CUDA_VISIBLE_DEVICES of " + worker.name + " may hide devices." : "");
}

// ---- Rule 1: the option `devices` ----

std::string deviceTable(const std::vector<c10::Device>& devices, const Notes& notes) {
  std::vector<TableRow> rows;
  for (size_t i = 0; i < devices.size(); ++i) {
    rows.push_back({devices[i].str(), "", notes[i]});
  }
  return table(rows, "");
}

Objection duplicateAmongDevices(const DeviceRecord& worker) {
  Notes notes;
  std::vector<c10::Device> once;
  for (const c10::Device& device : worker.devices) {
    const bool again = std::find(once.begin(), once.end(), device) != once.end();
    notes.emplace_back(again ? "is in the list already" : "");
    if (!again) {
      once.push_back(device);
    }
  }
  if (!anyIn(notes)) {
    return std::nullopt;
  }
  return "Node " + worker.name + " has duplicated devices:\n" + deviceTable(worker.devices, notes) +
      "In the options of " + worker.name + ", list each device once: devices=" + inPython(once);
}

Objection absentAmongDevices(const DeviceRecord& worker) {
  Notes notes;
  std::vector<c10::Device> absent;
  for (const c10::Device& device : worker.devices) {
    notes.push_back(worker.has(device) ? "" : absence(worker, device));
    if (!worker.has(device)) {
      absent.push_back(device);
    }
  }
  if (absent.empty()) {
    return std::nullopt;
  }
  return "Node " + worker.name + " has devices with invalid indices:\n" +
      deviceTable(worker.devices, notes) + "In the options of " + worker.name +
      ", list only devices that it has." + hintFor(worker, absent);
}

/// A device that a worker uses, and what says so.
struct Use {
  c10::Device device;
  std::string origin;
};

/// The uses do not mix types. `remedy` says where to change it.
Objection mixedTypes(
    const DeviceRecord& worker, const std::vector<Use>& uses, const std::string& remedy) {
  std::vector<TableRow> rows;
  bool mixed = false;
  for (const Use& use : uses) {
    const bool other = use.device.type() != uses.front().device.type();
    mixed = mixed || other;
    const std::string note =
        typeName(use.device.type()) + " beside " + typeName(uses.front().device.type());
    rows.push_back({use.device.str(), use.origin, other ? note : ""});
  }
  if (!mixed) {
    return std::nullopt;
  }
  return "Node " + worker.name + " has devices of different types:\n" + table(rows, "   ") +
      "A future of PyTorch can hold tensors on the cpu and on one more type of device. " + remedy;
}

Objection mixedAmongDevices(const DeviceRecord& worker) {
  std::vector<Use> uses;
  for (const c10::Device& device : worker.devices) {
    if (!device.is_cpu()) {
      uses.push_back({device, ""});
    }
  }
  return mixedTypes(
      worker, uses, "In the options of " + worker.name + ", list `devices` of one type.");
}

Objection objectionToDevices(const DeviceRecord& worker) {
  for (const auto rule : {duplicateAmongDevices, absentAmongDevices, mixedAmongDevices}) {
    if (Objection objection = rule(worker)) {
      return objection;
    }
  }
  return std::nullopt;
}

// ---- Rule 2: the device maps ----

/// A map as a worker's options have it.
struct GivenMap {
  const DeviceRecord& self;
  const std::string& peerName;
  const DeviceRecord* peer; // null: not there (yet)
  DeviceEntries entries;

  /// Which devices, of the two sides, a rule looks at.
  std::vector<c10::Device> sources() const;
  std::vector<c10::Device> targets() const;

  std::string objection(
      const std::string& what, const Notes& notes, const std::string& remedy) const;
};

std::vector<c10::Device> GivenMap::sources() const {
  std::vector<c10::Device> devices;
  for (const auto& [from, to] : entries) {
    devices.push_back(asOfTensors(from));
  }
  return devices;
}

std::vector<c10::Device> GivenMap::targets() const {
  std::vector<c10::Device> devices;
  for (const auto& [from, to] : entries) {
    devices.push_back(asOfTensors(to));
  }
  return devices;
}

std::string GivenMap::objection(
    const std::string& what, const Notes& notes, const std::string& remedy) const {
  return "Node " + self.name + " has " + what + " in its device map for " + peerName + ":\n" +
      mapTable(self.name, peerName, entries, notes) + remedy;
}

/// A note for each device that comes a second time: `note` of the entry where it was first.
template <typename Note>
Notes notesOnRepeated(const std::vector<c10::Device>& devices, const Note& note) {
  Notes notes;
  for (auto it = devices.begin(); it != devices.end(); ++it) {
    const auto first = std::find(devices.begin(), it, *it);
    notes.push_back(first == it ? "" : note(static_cast<size_t>(first - devices.begin())));
  }
  return notes;
}

Objection repeatedSource(const GivenMap& map) {
  const Notes notes = notesOnRepeated(map.sources(), [&](size_t first) {
    return "the same device as " + map.entries[first].first.str();
  });
  if (!anyIn(notes)) {
    return std::nullopt;
  }
  return map.objection(
      "duplicated source devices", notes,
      "A device can have one target only: keep one of the entries in the options of " +
          map.self.name + ".");
}

/// What could be the target instead of one that is taken.
std::string freeTarget(const GivenMap& map, const Notes& notes) {
  const std::vector<c10::Device> targets = map.targets();
  const auto wrong = std::find_if(
      notes.begin(), notes.end(), [](const std::string& note) { return !note.empty(); });
  const c10::Device taken = targets[static_cast<size_t>(wrong - notes.begin())];
  if (map.peer == nullptr || taken.is_cpu()) {
    return "";
  }
  const auto spare = freeDevice(*map.peer, taken, targets);
  return spare ? " (" + spare->str() + " of " + map.peerName + " is not used yet)"
               : " (" + map.peerName + " has no other " + typeName(taken.type()) +
          " device for it: leave one entry out)";
}

Objection repeatedTarget(const GivenMap& map) {
  const std::vector<c10::Device> targets = map.targets();
  const Notes notes = notesOnRepeated(targets, [&](size_t first) {
    return "already the target of " + map.entries[first].first.str();
  });
  if (!anyIn(notes)) {
    return std::nullopt;
  }
  return map.objection(
      "duplicated target devices", notes,
      "A response travels the map backwards, and could not find back from a device that is the "
      "target of two. In the options of " +
          map.self.name + ", give each device a target of its own" + freeTarget(map, notes) + ".");
}

/// One side of a map: sources on the worker itself, or targets on the peer.
struct Side {
  std::string name; // "source"
  const DeviceRecord& worker;
  std::vector<c10::Device> devices;
};

/// Of a worker that was given `devices`: the map keeps to them.
Objection unexpected(const GivenMap& map, const Side& side) {
  Notes notes;
  for (const c10::Device& device : side.devices) {
    const std::string reason = side.worker.has(device)
        ? "not in the `devices` of " + side.worker.name
        : absence(side.worker, device);
    notes.push_back(side.worker.mayUse(device) ? "" : reason);
  }
  if (!anyIn(notes)) {
    return std::nullopt;
  }
  const bool own = &side.worker == &map.self;
  const std::string others = own ? " and " : ", and those of " + side.worker.name + " have ";
  return map.objection(
      "unexpected " + side.name + " devices", notes,
      "The options of " + map.self.name + " have this map" + others +
          "devices=" + inPython(side.worker.devices) +
          ": change the map, add the device to `devices`, or leave `devices` out, so that they "
          "follow from the device maps.");
}

/// Of a worker that was not: the map names devices that there are.
Objection absent(const GivenMap& map, const Side& side) {
  Notes notes;
  std::vector<c10::Device> absent;
  for (const c10::Device& device : side.devices) {
    notes.push_back(side.worker.has(device) ? "" : absence(side.worker, device));
    if (!side.worker.has(device)) {
      absent.push_back(device);
    }
  }
  if (absent.empty()) {
    return std::nullopt;
  }
  return map.objection(
      side.name + " devices with invalid indices", notes,
      "In the options of " + map.self.name + ", change the map: a " + side.name +
          " is a device of " + side.worker.name + " or \"cpu\"." + hintFor(side.worker, absent));
}

Objection objectionToSide(const GivenMap& map, const Side& side) {
  return side.worker.devices.empty() ? absent(map, side) : unexpected(map, side);
}

Objection objectionToMap(const GivenMap& map) {
  for (const auto rule : {repeatedSource, repeatedTarget}) {
    if (Objection objection = rule(map)) {
      return objection;
    }
  }
  if (Objection objection = objectionToSide(map, {"source", map.self, map.sources()})) {
    return objection;
  }
  if (map.peer == nullptr) {
    return std::nullopt;
  }
  return objectionToSide(map, {"target", *map.peer, map.targets()});
}

std::string unknownName(const std::string& name, const std::vector<std::string>& names) {
  const auto meant = nearest(name, names);
  return "no worker has this name" + (meant ? "; did you mean '" + *meant + "'?" : "");
}

Objection objectionToPeers(const DeviceRecord& worker, const Group& group) {
  std::vector<std::string> names;
  for (const auto& [name, record] : group) {
    names.push_back(name);
  }
  std::vector<TableRow> rows;
  bool unknown = false;
  for (const auto& [peer, map] : worker.maps) {
    const bool known = group.contains(peer);
    unknown = unknown || !known;
    rows.push_back({peer, inPython(sortedEntries(map)), known ? "" : unknownName(peer, names)});
  }
  if (!unknown) {
    return std::nullopt;
  }
  return "Node " + worker.name + " has invalid target node names in its device maps:\n" +
      table(rows, "   ") + "The workers of the group are " + listed(names) +
      ". In the options of " + worker.name + ", name one of them.";
}

Objection objectionToMaps(const DeviceRecord& worker, const Group& group) {
  for (const auto& [name, map] : worker.maps) {
    const auto peer = group.find(name);
    const DeviceRecord* record = peer == group.end() ? nullptr : peer->second;
    if (Objection objection = objectionToMap({worker, name, record, sortedEntries(map)})) {
      return objection;
    }
  }
  return std::nullopt;
}

// ---- Rule 3: what the maps name on one worker ----

/// Each device once, in order, with what named it first.
using Uses = std::map<c10::Device, std::string, decltype(&comesBefore)>;

void addUse(Uses& uses, c10::Device device, const std::string& origin) {
  if (!device.is_cpu()) {
    uses.emplace(device, origin);
  }
}

std::string originOfMap(const DeviceRecord& from, const std::string& to) {
  const bool given = from.maps.contains(to);
  return (given ? "the device map of " : "device_maps=\"auto\" of ") + from.name +
      (given ? " for " + to : "");
}

Objection mixedAmongMaps(const DeviceRecord& worker, const Group& group) {
  if (!worker.devices.empty()) {
    return std::nullopt; // rule 1; and the maps keep to them, or rule 2 objects
  }
  Uses uses(&comesBefore);
  for (const auto& [peer, map] : worker.maps) {
    for (const auto& [own, theirs] : map) {
      addUse(uses, own, originOfMap(worker, peer));
    }
  }
  for (const auto& [name, peer] : group) {
    for (const auto& [own, theirs] : mapTo(worker, *peer)) {
      addUse(uses, own, originOfMap(worker, name));
    }
    for (const auto& [theirs, own] : mapTo(*peer, worker)) {
      addUse(uses, own, originOfMap(*peer, worker.name));
    }
  }
  std::vector<Use> list;
  for (const auto& [device, origin] : uses) {
    list.push_back({device, origin});
  }
  return mixedTypes(
      worker, list,
      "Keep the maps to devices of one type on " + worker.name +
          ", or list these as `devices` in its options.");
}

} // namespace

std::optional<std::string> objectionTo(const std::vector<DeviceRecord>& records, bool complete) {
  Group group; // in the order of names, whatever that of the records
  for (const DeviceRecord& record : records) {
    group.emplace(record.name, &record);
  }
  for (const auto& [name, worker] : group) {
    if (Objection objection = objectionToDevices(*worker)) {
      return objection;
    }
  }
  for (const auto& [name, worker] : group) {
    Objection objection = complete ? objectionToPeers(*worker, group) : std::nullopt;
    if (!objection) {
      objection = objectionToMaps(*worker, group);
    }
    if (objection) {
      return objection;
    }
  }
  for (const auto& [name, worker] : group) {
    if (Objection objection = mixedAmongMaps(*worker, group)) {
      return objection;
    }
  }
  return std::nullopt;
}

} // namespace torchwire::cuda
