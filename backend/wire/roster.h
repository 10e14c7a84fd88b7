// Who is in the group: the list that workers keep in the store, and what keeps a worker out of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/bytes.h"
#include "backend/base/process_identity.h"

namespace torchwire {

/// PyTorch's rank of a worker in the RPC group.
using WorkerId = int32_t;

/// What changes the frames on a link, so that all workers of a group have to agree on it: bits of
/// WorkerRecord::linkOptions.
namespace link_options {
constexpr uint32_t kChecksums = 1; // checksum_interceptor.h
constexpr uint32_t kFaultInjection = 2; // faults/fault_interceptor.h
// Changes no frame, but all have to agree on it as well: workers of a static group may be replaced, and others join.
constexpr uint32_t kElastic = 4;
constexpr uint32_t kUnencrypted = 8; // no connection is, see transport/encryption.h
} // namespace link_options

/// A sentence that says how the link options of two workers differ, with the remedy, or nothing. `a` and `b`
/// are how it calls them.
std::optional<std::string> linkOptionsObjection(
    const std::string& a, uint32_t optionsOfA, const std::string& b, uint32_t optionsOfB);

/// Where those that share a host with a worker dial it, so that a link need not begin over the network. A value.
struct HostAddress {
  std::string host; // which host that is, in the words of the transport
  std::string address; // "transport://name"; empty: they dial as all others
};

/// What a worker tells the group of itself. A value.
struct WorkerRecord {
  std::string name;
  WorkerId id = -1;
  uint64_t incarnation = 0; // random, new at every start
  std::string address; // where others dial it: "transport://host:port"
  HostAddress onHost;
  std::string torchVersion; // the public part: "2.11.0"
  uint32_t protocolVersion = 0;
  uint32_t linkOptions = 0;
  std::string
      devices; // which it has and how its options map them, as cuda/device_record.h writes it; empty: none

  ProcessIdentity process; // for those of its host to notice its end

  void write(ByteWriter& out) const;
  static WorkerRecord read(ByteReader& in);

  bool isElastic() const {
    return (linkOptions & link_options::kElastic) != 0;
  }
  /// For messages to users: `worker 'trainer0' (rank 2)`.
  std::string describe() const;
};

/// A sentence that says what is wrong with a worker's name, or nothing. PyTorch's rule: 1 to 127
/// characters out of letters, digits, '_', '-' and ':'.
std::optional<std::string> objectionToName(const std::string& name);

/// Throws FormatError unless what `version` wrote into the store can be read here.
void requireOwnProtocol(uint32_t version);

/// The group as the store holds it. A value; not thread-safe.
struct Roster {
  uint32_t worldSize = 0; // 0: a dynamic group, which workers join and leave
  uint64_t groupId =
      0; // from the group's credentials (group_credentials.h); tells groups on one network apart
  bool closed = false; // the group shuts down: nobody may join any more
  std::vector<WorkerRecord> workers; // in the order in which they joined

  bool isStatic() const {
    return worldSize != 0;
  }
  /// Whether as many workers are there as the group begins with.
  bool isComplete() const {
    return isStatic() && workers.size() >= worldSize;
  }
  /// A static group whose workers may be replaced, and which may grow.
  bool isElastic() const {
    return isStatic() && !workers.empty() && workers.front().isElastic();
  }
  /// Whether workers may come when it runs.
  bool isOpen() const {
    return !isStatic() || isElastic();
  }
  const WorkerRecord* find(WorkerId id) const;
  const WorkerRecord* find(const std::string& name) const;

  /// A sentence that says why `worker`, started with `worldSize` (0: none given), cannot be in this
  /// group, or nothing. The same sentence is shown on every worker of a static group.
  std::optional<std::string> objectionTo(const WorkerRecord& worker, uint32_t worldSize) const;

  /// Takes the worker of this incarnation off the list, if it is there.
  void remove(const WorkerRecord& worker);

  std::vector<char> encode() const;
  /// Throws FormatError.
  static Roster decode(const std::vector<char>& bytes);
};

} // namespace torchwire
