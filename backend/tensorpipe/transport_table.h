// The transports and channels that torchwire knows, by name: one table, from which options are
// checked, defaults chosen and TensorPipe contexts made.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/tensorpipe/choice.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/loop.h"
#include "backend/wire/key_ring.h"

namespace tensorpipe {
namespace transport {
class Context;
class Listener;
} // namespace transport
namespace channel {
class Context;
} // namespace channel
} // namespace tensorpipe

namespace torchwire {

/// Where a worker listens, and what its transports and channels share. Not thread-safe.
class TransportEnvironment {
 public:
  // As in TensorPipeOptions.
  std::string bindAddress;
  std::string advertiseAddress;
  std::shared_ptr<const KeyRing> keys;
  std::chrono::milliseconds keepAlive{0};
  std::chrono::milliseconds lossTimeout{0};
  Encryption encryption = Encryption::automatic;
  std::shared_ptr<Loop> loop;

  /// Throws std::runtime_error without any.
  const std::shared_ptr<const KeyRing>& groupKeys() const;

  std::shared_ptr<Endpoint> tcpEndpoint; // of wire_tcp, once that has been made
  std::vector<std::string> transports; // that have been made
  // All that are known, in order of preference, once they have been made.
  std::vector<Candidate> knownTransports;
  std::vector<Candidate> knownChannels;
  // What was to be used and does not work here, for peers to know why.
  std::vector<NotTaken> failedTransports;
  std::vector<NotTaken> failedChannels;
};

struct TransportEntry {
  std::string name;
  std::string description;
  bool byDefault; // used unless the options name transports
  enum class Reach {
    host, // this one, and a link has to be begun over another transport
    hostAlone, // this one
    network, // listens on an IP address
  } reach;
  bool
      staysBound; // an address stays taken for as long as the transport lives, whatever listener closes
  bool asksForProof; // of knowing the group's secret, from whoever connects
  // `where` is the address to listen on, where that is decided at once.
  std::function<std::shared_ptr<tensorpipe::transport::Context>(
      TransportEnvironment&, const std::string& where)>
      create;
};

struct ChannelEntry {
  std::string name;
  std::string description;
  bool byDefault;
  std::string lanes; // the transport by default with which it is used by default; "": with any
  std::function<std::shared_ptr<tensorpipe::channel::Context>(TransportEnvironment&)> create;
};

/// In order of preference, the best first.
const std::vector<TransportEntry>& transportTable();
const std::vector<ChannelEntry>& channelTable();

/// Whether those who connect have to prove that they know the group's secret. A channel's lanes are connections of a
/// transport.
bool asksForProof(const TransportEntry& transport);
bool asksForProof(const ChannelEntry& channel);

struct MadeTransport {
  const TransportEntry* entry;
  std::shared_ptr<tensorpipe::transport::Context> context;
};
struct MadeChannel {
  const ChannelEntry* entry;
  std::shared_ptr<tensorpipe::channel::Context> context;
};

/// Makes the wanted transports (those by default where nullopt), in order of preference. One that
/// cannot work here is left out with a log line; it never fails the process.
/// Throws std::runtime_error when a name is unknown or none of them works.
std::vector<MadeTransport> makeTransports(
    const std::optional<std::vector<std::string>>& wanted, TransportEnvironment& environment);
/// After the transports.
std::vector<MadeChannel> makeChannels(
    const std::optional<std::vector<std::string>>& wanted, TransportEnvironment& environment);

/// The transport over which others begin a link: the last that reaches farthest.
const TransportEntry& bootstrapOf(const std::vector<MadeTransport>& transports);

} // namespace torchwire
