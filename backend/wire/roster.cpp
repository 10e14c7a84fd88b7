#include "backend/wire/roster.h"

#include <algorithm>

#include "backend/wire/frame.h"

namespace torchwire {
namespace {

constexpr size_t kMaxNameLength = 127;
constexpr WorkerId kHighestId = 32767; // PyTorch keeps ranks in 16 bits
constexpr uint32_t kRosterMagic = 0x52575754; // "TWWR"

bool allowedInName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
      c == '-' || c == ':';
}

std::string sizeInWords(uint32_t worldSize) {
  return worldSize == 0 ? "no world_size (a dynamic group)"
                        : "world_size=" + std::to_string(worldSize);
}

std::optional<std::string> versionObjection(const WorkerRecord& a, const WorkerRecord& b) {
  if (a.protocolVersion != b.protocolVersion) {
    return a.describe() + " speaks torchwire protocol " + std::to_string(a.protocolVersion) +
        " but " + b.describe() + " speaks " + std::to_string(b.protocolVersion) +
        ": install the same torchwire on both";
  }
  if (a.torchVersion != b.torchVersion) {
    return a.describe() + " runs torch " + a.torchVersion + " but " + b.describe() +
        " runs torch " + b.torchVersion + ": install the same torch on both";
  }
  return linkOptionsObjection(a.describe(), a.linkOptions, b.describe(), b.linkOptions);
}

} // namespace

std::optional<std::string> linkOptionsObjection(
    const std::string& a, uint32_t optionsOfA, const std::string& b, uint32_t optionsOfB) {
  const uint32_t differing = optionsOfA ^ optionsOfB;
  const auto sentence = [&](uint32_t option, const std::string& verb, const std::string& remedy) {
    const bool hasIt = (optionsOfA & option) != 0;
    return (hasIt ? a : b) + verb + (hasIt ? b : a) + " does not: " + remedy;
  };
  if ((differing & link_options::kFaultInjection) != 0) {
    return sentence(
        link_options::kFaultInjection, " injects faults (FAULTY_TORCHWIRE) but ",
        "choose the same backend on all workers");
  }
  if ((differing & link_options::kChecksums) != 0) {
    return sentence(
        link_options::kChecksums, " adds checksums to its frames but ",
        "give all workers the same `checksums`");
  }
  if ((differing & link_options::kElastic) != 0) {
    return sentence(
        link_options::kElastic, " lets the group change (elastic=True) but ",
        "give all workers the same `elastic`");
  }
  if ((differing & link_options::kUnencrypted) != 0) {
    return sentence(
        link_options::kUnencrypted, " lets no connection be encrypted (encryption=False) but ",
        "give all workers the same `encryption`");
  }
  return std::nullopt;
}

void WorkerRecord::write(ByteWriter& out) const {
  out.string(name);
  out.number(id);
  out.number(incarnation);
  out.string(address);
  out.string(onHost.host);
  out.string(onHost.address);
  out.string(torchVersion);
  out.number(protocolVersion);
  out.number(linkOptions);
  out.string(devices);
  out.string(process.boot);
  out.number(process.pidNamespace);
  out.number(process.pid);
  out.number(process.startTime);
  out.number(process.stack);
}

WorkerRecord WorkerRecord::read(ByteReader& in) {
  WorkerRecord record;
  record.name = in.string();
  record.id = in.number<WorkerId>();
  record.incarnation = in.number<uint64_t>();
  record.address = in.string();
  record.onHost.host = in.string();
  record.onHost.address = in.string();
  record.torchVersion = in.string();
  record.protocolVersion = in.number<uint32_t>();
  record.linkOptions = in.number<uint32_t>();
  record.devices = in.string();
  record.process.boot = in.string();
  record.process.pidNamespace = in.number<uint64_t>();
  record.process.pid = in.number<int32_t>();
  record.process.startTime = in.number<uint64_t>();
  record.process.stack = in.number<uint64_t>();
  return record;
}

std::string WorkerRecord::describe() const {
  return "worker '" + name + "' (rank " + std::to_string(id) + ")";
}

std::optional<std::string> objectionToName(const std::string& name) {
  if (name.empty()) {
    return "a worker's name must not be empty";
  }
  if (name.size() > kMaxNameLength) {
    return "the worker name '" + name.substr(0, 40) + "...' has " + std::to_string(name.size()) +
        " characters; at most " + std::to_string(kMaxNameLength) + " are allowed";
  }
  const auto bad = std::find_if(name.begin(), name.end(), [](char c) { return !allowedInName(c); });
  if (bad != name.end()) {
    return "the worker name '" + name + "' contains '" + std::string(1, *bad) +
        "'; use letters, digits, '_', '-' and ':' only";
  }
  return std::nullopt;
}

void requireOwnProtocol(uint32_t version) {
  if (version != kProtocolVersion) {
    throw FormatError(
        "the workers of this group speak torchwire protocol " + std::to_string(version) +
        ", this one speaks " + std::to_string(kProtocolVersion) +
        ": install the same torchwire on all");
  }
}

const WorkerRecord* Roster::find(WorkerId id) const {
  const auto it = std::find_if(
      workers.begin(), workers.end(), [&](const WorkerRecord& w) { return w.id == id; });
  return it == workers.end() ? nullptr : &*it;
}

const WorkerRecord* Roster::find(const std::string& name) const {
  const auto it = std::find_if(
      workers.begin(), workers.end(), [&](const WorkerRecord& w) { return w.name == name; });
  return it == workers.end() ? nullptr : &*it;
}

std::optional<std::string> Roster::objectionTo(const WorkerRecord& worker, uint32_t size) const {
  if (auto objection = objectionToName(worker.name)) {
    return objection;
  }
  if (!workers.empty() && size != worldSize) {
    // PyTorch's own words first, where it has some: people search for them.
    const std::string mixed = (size == 0) != (worldSize == 0)
        ? "RPC group mixes statically and dynamically initialized members which is not supported. "
        : "";
    return mixed + worker.describe() + " was started with " + sizeInWords(size) +
        " but the group, first joined by " + workers.front().describe() + ", has " +
        sizeInWords(worldSize) + ": start all workers with the same world_size";
  }
  if (closed) {
    return worker.describe() + " comes too late: the RPC group shuts down";
  }
  const bool anyRank = size == 0 || worker.isElastic();
  const WorkerId highest = anyRank ? kHighestId : static_cast<WorkerId>(size - 1);
  if (worker.id < 0 || worker.id > highest) {
    return worker.describe() + " is outside the group: ranks go from 0 to " +
        std::to_string(highest);
  }
  if (const WorkerRecord* other = find(worker.id)) {
    return "rank " + std::to_string(worker.id) + " is not unique: worker '" + other->name +
        "' and worker '" + worker.name + "' both have it; give every worker its own rank";
  }
  if (const WorkerRecord* other = find(worker.name)) {
    return "worker name '" + worker.name + "' is not unique: rank " + std::to_string(other->id) +
        " and rank " + std::to_string(worker.id) + " both have it; give every worker its own name";
  }
  return workers.empty() ? std::nullopt : versionObjection(workers.front(), worker);
}

void Roster::remove(const WorkerRecord& worker) {
  std::erase_if(workers, [&](const WorkerRecord& w) {
    return w.id == worker.id && w.incarnation == worker.incarnation;
  });
}

std::vector<char> Roster::encode() const {
  std::vector<char> bytes;
  ByteWriter out(bytes);
  out.number(kRosterMagic);
  out.number(kProtocolVersion); // of the first worker: the others refuse to join if theirs differs
  out.number(worldSize);
  out.number(groupId);
  out.flag(closed);
  out.number(static_cast<uint32_t>(workers.size()));
  for (const WorkerRecord& worker : workers) {
    worker.write(out);
  }
  return bytes;
}

Roster Roster::decode(const std::vector<char>& bytes) {
  ByteReader in(bytes);
  if (in.number<uint32_t>() != kRosterMagic) {
    throw FormatError("the store's member list is not torchwire's");
  }
  requireOwnProtocol(in.number<uint32_t>());
  Roster roster;
  roster.worldSize = in.number<uint32_t>();
  roster.groupId = in.number<uint64_t>();
  roster.closed = in.flag();
  const uint32_t count = in.count(sizeof(uint64_t));
  for (uint32_t i = 0; i < count; ++i) {
    roster.workers.push_back(WorkerRecord::read(in));
  }
  return roster;
}

} // namespace torchwire
