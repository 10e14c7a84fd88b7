// The transports and channels that torchwire knows, by name: one table, from which options are
// checked, defaults chosen and TensorPipe contexts made.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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

struct TransportEntry {
  std::string name;
  std::string description;
  bool byDefault; // used unless the options name transports
  bool networked; // listens on an IP address, so others can bootstrap a link over it
  std::function<std::shared_ptr<tensorpipe::transport::Context>()> create;
};

struct ChannelEntry {
  std::string name;
  std::string description;
  bool byDefault;
  // `host` is where the channel's own lanes listen ("" where it has none).
  std::function<std::shared_ptr<tensorpipe::channel::Context>(const std::string& host)> create;
};

/// In order of preference, the best first.
const std::vector<TransportEntry>& transportTable();
const std::vector<ChannelEntry>& channelTable();

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
std::vector<MadeTransport> makeTransports(const std::optional<std::vector<std::string>>& wanted);
std::vector<MadeChannel> makeChannels(
    const std::optional<std::vector<std::string>>& wanted, const std::string& host);

} // namespace torchwire
