#include "backend/tensorpipe/transport_table.h"

#include <tensorpipe/tensorpipe.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "backend/base/address.h"
#include "backend/base/log.h"
#include "backend/tensorpipe/advertised_transport.h"
#include "backend/tensorpipe/cma_probe.h"
#include "backend/tensorpipe/shm_transport.h"
#include "backend/tensorpipe/tcp_transport.h"

namespace torchwire {
namespace {

namespace tp = tensorpipe;

/// One that cannot be used here, with a remedy.
class Unusable final : public std::runtime_error {
 public:
  explicit Unusable(Objection objection)
      : std::runtime_error(objection.reason), remedy(std::move(objection.remedy)) {}

  const std::string remedy;
};

// Connections in parallel for one tensor. PyTorch uses 16, which costs 16 threads and over 100 files
// for every process; on loopback more than two gain nothing clear (docs/decisions.md).
constexpr size_t kMptLanes = 2;

std::shared_ptr<tp::channel::Context> overUvLanes(TransportEnvironment& environment) {
  if (!environment.advertiseAddress.empty()) {
    throw std::runtime_error("its lanes cannot listen behind a NAT");
  }
  const std::string host = hostOf(environment.bindAddress);
  if (const auto reason =
          whyCannotBind(host)) { // a bind that fails inside TensorPipe ends the process
    throw CannotListen(host, *reason);
  }
  std::vector<std::shared_ptr<tp::transport::Context>> contexts;
  std::vector<std::shared_ptr<tp::transport::Listener>> listeners;
  for (size_t lane = 0; lane < kMptLanes; ++lane) {
    auto context = tp::transport::uv::create();
    listeners.push_back(context->listen(host));
    contexts.push_back(std::move(context));
  }
  return tp::channel::mpt::create(std::move(contexts), std::move(listeners));
}

std::shared_ptr<tp::channel::Context> overWireTcpLanes(TransportEnvironment& environment) {
  if (!environment.tcpEndpoint) {
    throw std::runtime_error("its lanes need the transport 'wire_tcp'");
  }
  std::vector<std::shared_ptr<tp::transport::Context>> contexts;
  std::vector<std::shared_ptr<tp::transport::Listener>> listeners;
  for (size_t lane = 1; lane <= kMptLanes; ++lane) { // 0 is for the pipes
    auto context = makeTcpTransport(environment.tcpEndpoint, static_cast<uint8_t>(lane));
    listeners.push_back(context->listen(""));
    contexts.push_back(std::move(context));
  }
  return tp::channel::mpt::create(std::move(contexts), std::move(listeners));
}

std::shared_ptr<tp::transport::Context> makeWireShm(TransportEnvironment& environment) {
  const std::shared_ptr<const KeyRing> keys = environment.groupKeys();
  try {
    return makeShmTransport(environment.loop, keys);
  } catch (const std::exception& e) {
    throw Unusable(
        {e.what(),
         "permit memfd_create and abstract Unix sockets, in the container's seccomp profile and "
         "the security module's policy; `python -m torchwire doctor` tries each"});
  }
}

std::shared_ptr<tp::transport::Context> createWireTcp(
    TransportEnvironment& environment, const std::string& where) {
  TcpOptions options;
  options.bindAddress = where;
  options.advertiseAddress = environment.advertiseAddress;
  options.keepAlive = environment.keepAlive;
  options.lossTimeout = environment.lossTimeout;
  options.encryption = environment.encryption;
  environment.tcpEndpoint = openTcpEndpoint(environment.loop, environment.groupKeys(), options);
  return makeTcpTransport(environment.tcpEndpoint, 0);
}

/// TensorPipe's own transports bind when they are told to listen, and know nothing of advertised addresses.
template <typename Create>
auto networked(Create create) {
  return [create](TransportEnvironment& environment, const std::string&) {
    auto context = create();
    return context && context->isViable() && !environment.advertiseAddress.empty()
        ? advertise(std::move(context), environment.advertiseAddress)
        : context;
  };
}

// Known, so that options written for PyTorch's agent are accepted.
ChannelEntry cudaChannel(const std::string& name) {
  return {
      name, "not used: CUDA tensors have paths of torchwire's own (docs/devices.md)", false, "",
      [](TransportEnvironment&) -> std::shared_ptr<tp::channel::Context> {
        throw std::runtime_error("CUDA tensors have paths of torchwire's own");
      }};
}

template <typename Entry>
std::string namesOf(const std::vector<Entry>& table) {
  std::string names;
  for (const Entry& entry : table) {
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  return names;
}

/// The entries to try: those named, in the order named, or those that `byDefault` picks.
template <typename Entry, typename ByDefault>
std::vector<const Entry*> select(
    const std::vector<Entry>& table, const std::optional<std::vector<std::string>>& wanted,
    const std::string& what, ByDefault byDefault) {
  std::vector<const Entry*> selected;
  if (!wanted) {
    for (const Entry& entry : table) {
      if (byDefault(entry)) {
        selected.push_back(&entry);
      }
    }
    return selected;
  }
  for (const std::string& name : *wanted) {
    const auto it = std::find_if(
        table.begin(), table.end(), [&](const Entry& entry) { return entry.name == name; });
    if (it == table.end()) {
      throw std::runtime_error("unknown " + what + " '" + name + "'; known are " + namesOf(table));
    }
    selected.push_back(&*it);
  }
  return selected;
}

/// The last of those that reach farthest: in order of preference it is the one that most peers have.
template <typename Entries>
auto bootstrapAmong(const Entries& entries) {
  return *std::max_element(entries.rbegin(), entries.rend(), [](const auto* a, const auto* b) {
    return a->reach < b->reach;
  });
}

/// Probes one entry: its context, or null with a log line and what speaks against it.
template <typename Context, typename Create>
std::shared_ptr<Context> probe(
    const std::string& what, const std::string& name, Create create,
    std::map<std::string, Objection>& failures) {
  Objection failure{"it is not viable on this machine", ""};
  LogLevel level = LogLevel::
      info; // this machine merely has no such thing, which matters only where no other works
  try {
    std::shared_ptr<Context> context = create();
    if (context && context->isViable()) {
      return context;
    }
  } catch (const CannotListen&) { // bind_address is wrong, whatever else works
    throw;
  } catch (const Unusable& e) {
    failure = {e.what(), e.remedy};
    level = LogLevel::warning;
  } catch (const std::exception& e) {
    failure.reason = e.what();
    level = LogLevel::warning;
  }
  log(level, what + " '" + name + "' is left out: " + failure.reason);
  failures.emplace(name, std::move(failure));
  return nullptr;
}

std::string reasonsIn(const std::map<std::string, Objection>& failures) {
  std::string reasons;
  for (const auto& [name, objection] : failures) {
    reasons += (reasons.empty() ? "'" : "; '") + name + "': " + objection.reason;
  }
  return reasons;
}

/// Once in a process, which may have a session after the other.
void warnOfStrangers(const std::string& option, const std::vector<std::string>& open) {
  std::string names;
  for (const std::string& name : open) {
    names += (names.empty() ? "'" : ", '") + name + "'";
  }
  static std::atomic<bool> warned{false};
  if (!names.empty() && !warned.exchange(true)) {
    log(LogLevel::warning,
        option + " names " + names +
            ", which let in whoever connects, without proof of belonging to the group, and encrypt "
            "nothing: a stranger can run code in this process or end it; leave " +
            option + " out, or name 'wire_shm' and 'wire_tcp' in _transports (docs/security.md)");
  }
}

template <typename Made>
std::vector<std::string> openToAll(const std::vector<Made>& made) {
  std::vector<std::string> names;
  for (const Made& one : made) {
    if (!asksForProof(*one.entry)) {
      names.push_back(one.entry->name);
    }
  }
  return names;
}

std::vector<NotTaken> listOf(const std::map<std::string, Objection>& failures) {
  std::vector<NotTaken> list;
  for (const auto& [name, objection] : failures) {
    list.push_back({name, objection.reason, objection.remedy});
  }
  return list;
}

/// What speaks against one that was not to be tried.
template <typename Entry>
Objection unselected(const Entry& entry, const std::string& option, bool byDefault) {
  if (!byDefault) {
    return {"the option " + option + " leaves it out", "name it there, for both workers"};
  }
  if constexpr (std::is_same_v<Entry, ChannelEntry>) {
    if (entry.byDefault) {
      return {"it needs the transport '" + entry.lanes + "', which is not used", ""};
    }
  }
  return {"it is used only where it is named", "name it in " + option + ", for both workers"};
}

/// All entries in order of preference: the selected ones, and the others where the table has them.
template <typename Entry>
std::vector<Candidate> candidatesOf(
    const std::vector<Entry>& table, const std::vector<const Entry*>& selected,
    const std::map<std::string, Objection>& failures, const std::string& option, bool byDefault) {
  std::vector<Candidate> candidates;
  const Entry* next = table.data();
  const auto addUnselectedBefore = [&](const Entry* end) {
    for (; next < end; ++next) {
      if (std::find(selected.begin(), selected.end(), next) == selected.end()) {
        candidates.push_back({next->name, unselected(*next, option, byDefault)});
      }
    }
  };
  for (const Entry* entry : selected) {
    addUnselectedBefore(entry);
    const auto failure = failures.find(entry->name);
    candidates.push_back(
        {entry->name, failure == failures.end() ? std::nullopt : std::optional(failure->second)});
  }
  addUnselectedBefore(table.data() + table.size());
  return candidates;
}

} // namespace

// ---- TransportEnvironment -------------------------------------------------------------------------

const std::shared_ptr<const KeyRing>& TransportEnvironment::groupKeys() const {
  if (!keys) {
    throw std::runtime_error(
        "there is no group key, by which it could tell workers from unknown peers");
  }
  return keys;
}

// ---- the tables -----------------------------------------------------------------------------------

const std::vector<TransportEntry>& transportTable() {
  using Reach = TransportEntry::Reach;
  static const std::vector<TransportEntry> table = {
      {"wire_shm", "shared memory between workers on one host; sleeps when idle", true,
       Reach::hostAlone, true, true,
       [](TransportEnvironment& environment, const std::string&) {
         return makeWireShm(environment);
       }},
      {"wire_tcp", "TCP; lets in only who knows the group's secret", true, Reach::network, true,
       true, createWireTcp},
      {"shm", "TensorPipe's shared memory; its thread polls without pause and burns a core", false,
       Reach::host, false, false,
       [](TransportEnvironment&, const std::string&) { return tp::transport::shm::create(); }},
      {"ibv", "TensorPipe's InfiniBand verbs", false, Reach::network, false, false,
       networked([] { return tp::transport::ibv::create(); })},
      {"uv", "TensorPipe's TCP, on libuv; an unknown peer that connects can end the process", false,
       Reach::network, false, false, networked([] { return tp::transport::uv::create(); })},
  };
  return table;
}

const std::vector<ChannelEntry>& channelTable() {
  static const std::vector<ChannelEntry> table = {
      {"cma", "reads the peer's memory directly (process_vm_readv), on one host", true, "",
       [](TransportEnvironment&) {
         auto context = tp::channel::cma::create();
         if (!context->isViable()) {
           throw Unusable(whyNoCma());
         }
         return context;
       }},
      {"mpt_wire_tcp", "several connections of wire_tcp in parallel, by the same port",
       false, // one thread serves them all, so they gain nothing here (docs/decisions.md)
       "wire_tcp", overWireTcpLanes},
      {"mpt_uv", "several connections of uv in parallel", true, "uv", overUvLanes},
      {"basic", "over the transport itself", true, "",
       [](TransportEnvironment&) { return tp::channel::basic::create(); }},
      cudaChannel("cuda_ipc"),
      cudaChannel("cuda_gdr"),
      cudaChannel("cuda_xth"),
      cudaChannel("cuda_basic"),
  };
  return table;
}

// ---- making ---------------------------------------------------------------------------------------

std::vector<MadeTransport> makeTransports(
    const std::optional<std::vector<std::string>>& wanted, TransportEnvironment& environment) {
  const auto selected = select(
      transportTable(), wanted, "transport",
      [](const TransportEntry& entry) { return entry.byDefault; });
  // A port that was asked for is for one transport only.
  const TransportEntry* bootstrap = selected.empty() ? nullptr : bootstrapAmong(selected);
  std::vector<MadeTransport> made;
  std::map<std::string, Objection> failures;
  for (const TransportEntry* entry : selected) {
    const std::string where =
        entry == bootstrap ? environment.bindAddress : hostOf(environment.bindAddress);
    auto context = probe<tp::transport::Context>(
        "transport", entry->name, [&] { return entry->create(environment, where); }, failures);
    if (context) {
      made.push_back({entry, std::move(context)});
      environment.transports.push_back(entry->name);
    }
  }
  environment.knownTransports =
      candidatesOf(transportTable(), selected, failures, "_transports", !wanted);
  environment.failedTransports = listOf(failures);
  if (bootstrap != nullptr && bootstrap->reach == TransportEntry::Reach::network &&
      std::none_of(made.begin(), made.end(), [](const MadeTransport& transport) {
        return transport.entry->reach == TransportEntry::Reach::network;
      })) {
    throw std::runtime_error(
        "the transport '" + bootstrap->name +
        "', by which workers on other hosts are reached, does not work here (" +
        reasonsIn(failures) + "); for a group on one host name _transports=['wire_shm']");
  }
  const bool dialed = std::any_of(made.begin(), made.end(), [](const MadeTransport& transport) {
    return transport.entry->reach != TransportEntry::Reach::host;
  });
  if (!dialed) {
    throw std::runtime_error(
        "none of the transports that were asked for works here by itself; name at least 'wire_tcp' "
        "in _transports" +
        (failures.empty() ? "" : " (" + reasonsIn(failures) + ")"));
  }
  warnOfStrangers("_transports", openToAll(made));
  return made;
}

const TransportEntry& bootstrapOf(const std::vector<MadeTransport>& transports) {
  std::vector<const TransportEntry*> entries;
  for (const MadeTransport& transport : transports) {
    entries.push_back(transport.entry);
  }
  return *bootstrapAmong(entries);
}

bool asksForProof(const TransportEntry& transport) {
  return transport.asksForProof;
}

bool asksForProof(const ChannelEntry& channel) {
  return std::none_of(
      transportTable().begin(), transportTable().end(), [&](const TransportEntry& entry) {
        return entry.name == channel.lanes && !entry.asksForProof;
      });
}

std::vector<MadeChannel> makeChannels(
    const std::optional<std::vector<std::string>>& wanted, TransportEnvironment& environment) {
  const auto has = [&](const std::string& transport) {
    return std::find(environment.transports.begin(), environment.transports.end(), transport) !=
        environment.transports.end();
  };
  const auto selected = select(channelTable(), wanted, "channel", [&](const ChannelEntry& entry) {
    return entry.byDefault && (entry.lanes.empty() || has(entry.lanes));
  });
  std::vector<MadeChannel> made;
  std::map<std::string, Objection> failures;
  for (const ChannelEntry* entry : selected) {
    auto context = probe<tp::channel::Context>(
        "channel", entry->name, [&] { return entry->create(environment); }, failures);
    if (context) {
      made.push_back({entry, std::move(context)});
    }
  }
  environment.knownChannels =
      candidatesOf(channelTable(), selected, failures, "_channels", !wanted);
  environment.failedChannels = listOf(failures);
  if (made.empty()) {
    throw std::runtime_error(
        "none of the channels that were asked for works here; name at least 'basic' in _channels");
  }
  warnOfStrangers("_channels", openToAll(made));
  return made;
}

} // namespace torchwire
