#include "backend/transport_table.h"

#include <tensorpipe/tensorpipe.h>

#include <algorithm>
#include <stdexcept>

#include "backend/log.h"

namespace torchwire {
namespace {

namespace tp = tensorpipe;

// Connections in parallel for one tensor. PyTorch uses 16, which costs 16 threads and over 100 files
// for every process; on loopback more than two gain nothing clear (docs/decisions.md).
constexpr size_t kMptLanes = 2;

std::shared_ptr<tp::channel::Context> createMpt(const std::string& host) {
  std::vector<std::shared_ptr<tp::transport::Context>> contexts;
  std::vector<std::shared_ptr<tp::transport::Listener>> listeners;
  for (size_t lane = 0; lane < kMptLanes; ++lane) {
    auto context = tp::transport::uv::create();
    listeners.push_back(context->listen(host));
    contexts.push_back(std::move(context));
  }
  return tp::channel::mpt::create(std::move(contexts), std::move(listeners));
}

// Known, so that options written for PyTorch's agent are accepted.
ChannelEntry cudaChannel(const std::string& name) {
  return {
      name,
      "for CUDA tensors, which this version does not send",
      false,
      [](const std::string&) -> std::shared_ptr<tp::channel::Context> {
        throw std::runtime_error("this version of torchwire sends CPU tensors only");
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

/// The entries to try: those named, in the order named, or those by default.
template <typename Entry>
std::vector<const Entry*> select(
    const std::vector<Entry>& table,
    const std::optional<std::vector<std::string>>& wanted,
    const std::string& what) {
  std::vector<const Entry*> selected;
  if (!wanted) {
    for (const Entry& entry : table) {
      if (entry.byDefault) {
        selected.push_back(&entry);
      }
    }
    return selected;
  }
  for (const std::string& name : *wanted) {
    const auto it = std::find_if(
        table.begin(), table.end(), [&](const Entry& entry) { return entry.name == name; });
    if (it == table.end()) {
      throw std::runtime_error(
          "unknown " + what + " '" + name + "'; known are " + namesOf(table));
    }
    selected.push_back(&*it);
  }
  return selected;
}

/// Probes one entry: its context, or null with a log line.
template <typename Context, typename Create>
std::shared_ptr<Context> probe(const std::string& what, const std::string& name, Create create) {
  std::string reason = "it is not viable on this machine";
  try {
    std::shared_ptr<Context> context = create();
    if (context && context->isViable()) {
      return context;
    }
  } catch (const std::exception& e) {
    reason = e.what();
  }
  log(LogLevel::warning, what + " '" + name + "' is left out: " + reason);
  return nullptr;
}

} // namespace

const std::vector<TransportEntry>& transportTable() {
  static const std::vector<TransportEntry> table = {
      {"shm",
       "TensorPipe's shared memory; its thread polls without pause and burns a core",
       false,
       false,
       [] { return tp::transport::shm::create(); }},
      {"ibv", "TensorPipe's InfiniBand verbs", false, true, [] { return tp::transport::ibv::create(); }},
      {"uv", "TensorPipe's TCP, on libuv", true, true, [] { return tp::transport::uv::create(); }},
  };
  return table;
}

const std::vector<ChannelEntry>& channelTable() {
  static const std::vector<ChannelEntry> table = {
      {"cma",
       "reads the peer's memory directly (process_vm_readv), on one host",
       true,
       [](const std::string&) { return tp::channel::cma::create(); }},
      {"mpt_uv", "several TCP connections in parallel", true, createMpt},
      {"basic",
       "over the transport itself",
       true,
       [](const std::string&) { return tp::channel::basic::create(); }},
      cudaChannel("cuda_ipc"),
      cudaChannel("cuda_gdr"),
      cudaChannel("cuda_xth"),
      cudaChannel("cuda_basic"),
  };
  return table;
}

std::vector<MadeTransport> makeTransports(const std::optional<std::vector<std::string>>& wanted) {
  std::vector<MadeTransport> made;
  for (const TransportEntry* entry : select(transportTable(), wanted, "transport")) {
    if (auto context = probe<tp::transport::Context>("transport", entry->name, entry->create)) {
      made.push_back({entry, std::move(context)});
    }
  }
  const bool networked = std::any_of(
      made.begin(), made.end(), [](const MadeTransport& t) { return t.entry->networked; });
  if (!networked) {
    throw std::runtime_error(
        "none of the transports that were asked for can reach another host; name at least 'uv' in "
        "_transports");
  }
  return made;
}

std::vector<MadeChannel> makeChannels(
    const std::optional<std::vector<std::string>>& wanted, const std::string& host) {
  std::vector<MadeChannel> made;
  for (const ChannelEntry* entry : select(channelTable(), wanted, "channel")) {
    if (host.empty() && entry->name == "mpt_uv") {
      log(LogLevel::info, "channel 'mpt_uv' is left out: its lanes cannot listen behind a NAT");
      continue;
    }
    auto context = probe<tp::channel::Context>(
        "channel", entry->name, [&] { return entry->create(host); });
    if (context) {
      made.push_back({entry, std::move(context)});
    }
  }
  if (made.empty()) {
    throw std::runtime_error(
        "none of the channels that were asked for works here; name at least 'basic' in _channels");
  }
  return made;
}

} // namespace torchwire
