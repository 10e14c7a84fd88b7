// The extension module torchwire._C. Bindings only convert; each says how it treats the GIL.

#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <set>

#include "backend/agent/agent.h"
#include "backend/agent/failed_start.h"
#include "backend/agent/forked_agent.h"
#include "backend/agent/group_secrets.h"
#include "backend/agent/quiet_store.h"
#include "backend/link/checksum_interceptor.h"
#include "backend/membership/bounded_store.h"
#include "backend/serve/signals.h"
#include "backend/tensorpipe/transport_table.h"
#include "build_features.h"
#include "cuda/device_record.h"
#include "plugin/autograd_bindings.h"
#include "plugin/call_bindings.h"
#include "plugin/error_bindings.h"
#include "plugin/fault_bindings.h"
#include "plugin/metrics_bindings.h"
#include "plugin/observer_bindings.h"
#include "plugin/pickled_rrefs.h"
#include "plugin/rref_bindings.h"
#include "plugin/thread_check_bindings.h"
#include "plugin/thread_exit.h"
#include "plugin/worker_event_bindings.h"

namespace py = pybind11;

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

/// What devices.py has made of the options.
cuda::DeviceRecord devicesFrom(const py::dict& dict) {
  cuda::DeviceRecord record;
  record.maps = dict["maps"].cast<std::map<std::string, cuda::DeviceMap>>();
  record.automatic = dict["automatic"].cast<bool>();
  record.devices = dict["given"].cast<std::vector<c10::Device>>();
  for (const auto& last : dict["last"].cast<std::vector<c10::Device>>()) { // of each type
    record.counts[last.type()] = static_cast<c10::DeviceIndex>(last.index() + 1);
  }
  return record;
}

std::set<cuda::DevicePath> devicePathsWithout(
    const std::optional<std::vector<std::string>>& names) {
  std::set<cuda::DevicePath> left;
  for (const auto path :
       {cuda::DevicePath::process, cuda::DevicePath::ipc, cuda::DevicePath::nccl}) {
    if (names && std::find(names->begin(), names->end(), cuda::nameOf(path)) == names->end()) {
      left.insert(path);
    }
  }
  return left;
}

Encryption encryptionFrom(const py::object& option) {
  if (py::isinstance<py::bool_>(option)) {
    return option.cast<bool>() ? Encryption::on : Encryption::off;
  }
  return Encryption::automatic;
}

AgentOptions optionsFrom(const py::dict& dict) {
  AgentOptions options;
  options.numWorkerThreads = dict["num_worker_threads"].cast<size_t>();
  options.numSpareThreads = dict["num_spare_threads"].cast<size_t>();
  options.rpcTimeoutSeconds = dict["rpc_timeout"].cast<float>();
  options.bindAddress = dict["bind_address"].cast<std::string>();
  options.advertiseAddress = dict["advertise_address"].cast<std::string>();
  using Names = std::optional<std::vector<std::string>>;
  options.transports = dict["transports"].cast<Names>();
  options.channels = dict["channels"].cast<Names>();
  options.secrets = dict["secrets"].cast<std::vector<std::string>>(); // of bytes, as they are
  options.encryption = encryptionFrom(dict["encryption"]);
  options.keepAlive = std::chrono::milliseconds(
      static_cast<int64_t>(dict["keepalive_interval"].cast<double>() * 1000));
  options.storeThread = dict["store_thread"].cast<std::shared_ptr<ThreadPool>>();
  options.inheritDeadline = dict["inherit_deadline"].cast<bool>();
  options.elastic = dict["elastic"].cast<bool>();
  options.sessionTimeout = std::chrono::milliseconds(
      static_cast<int64_t>(std::ceil(dict["session_timeout"].cast<double>() * 1000)));
  options.maxUnacknowledgedBytes = dict["max_unacknowledged_bytes"].cast<size_t>();
  options.receiveCache = dict["receive_cache"].cast<size_t>();
  options.maxBytesInFlight = dict["max_bytes_in_flight"].cast<size_t>();
  options.backwardMode = dict["backward_mode"].cast<std::string>() == "fast" ? BackwardMode::fast
                                                                             : BackwardMode::smart;
  options.interceptors = dict["interceptors"].cast<std::vector<std::shared_ptr<LinkInterceptor>>>();
  options.devicePathsLeftOut = devicePathsWithout(dict["device_paths"].cast<Names>());
  options.devices = devicesFrom(dict["devices"]);
  options.workerEvents = pythonsWorkerEvents();
  options.slowCallWarning = std::chrono::milliseconds(
      static_cast<int64_t>(std::ceil(dict["slow_call_warning"].cast<double>() * 1000)));
  options.stackOf = pythonsStackOf;
  options.answer = pythonsAnswer;
  options.devices.nccl = dict["nccl"].cast<bool>();
  options.devices.ncclLeavesHost = options.encryption == Encryption::off;
  options.deviceStreamOrder = dict["device_stream_order"].cast<std::string>() == "default_stream"
      ? cuda::StreamOrder::defaultStream
      : cuda::StreamOrder::none;
  return options;
}

py::list listOf(const std::vector<CarriedBytes>& carried) {
  py::list list;
  for (const CarriedBytes& each : carried) {
    py::dict dict;
    dict["transport"] = each.transport;
    dict["channel"] = each.channel;
    dict["bytes_sent"] = each.sent;
    dict["bytes_received"] = each.received;
    list.append(dict);
  }
  return list;
}

py::dict toDict(const PeerStatus& peer) {
  py::dict dict;
  dict["name"] = peer.record.name;
  dict["id"] = peer.record.id;
  dict["address"] = peer.record.address;
  dict["state"] = nameOf(peer.state);
  dict["transport"] = peer.link.transport;
  dict["channel"] = peer.link.channel;
  dict["encryption"] = peer.link.encryption;
  dict["calls"] = peer.traffic.calls;
  dict["frames_sent"] = peer.traffic.framesSent;
  dict["frames_received"] = peer.traffic.framesReceived;
  dict["bytes_sent"] = peer.traffic.bytesSent();
  dict["bytes_received"] = peer.traffic.bytesReceived();
  dict["links_lost"] = peer.traffic.linksLost;
  dict["carried"] = listOf(peer.traffic.carried());
  return dict;
}

template <typename Entry>
py::dict descriptionsOf(const std::vector<Entry>& table) {
  py::dict dict;
  for (const Entry& entry : table) {
    dict[py::str(entry.name)] = entry.description + (entry.byDefault ? " (used by default)" : "");
  }
  return dict;
}

template <typename Entry>
py::list withoutProof(const std::vector<Entry>& table) {
  py::list names;
  for (const Entry& entry : table) {
    if (!asksForProof(entry)) {
      names.append(entry.name);
    }
  }
  return names;
}

/// Destroying an agent joins threads that may need the GIL, and that a forked child does not have. An agent that is still there when Python has
/// ended (PyTorch holds it in a static variable) was shut down before, by torchwire.exit_hook.
void destroy(Agent* agent) {
  if (agent->parts().isInherited()) {
    return;
  }
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    const py::gil_scoped_release release;
    delete agent;
  } else {
    delete agent;
  }
}

using AgentHolder = std::shared_ptr<Agent>;

/// Keeps the GIL: it reads Python's options.
AgentHolder makeAgent(
    const c10::intrusive_ptr<c10d::Store>& store, std::string name, int rank,
    std::optional<int> worldSize, const py::dict& options) {
  return AgentHolder(
      new Agent(
          store, std::move(name), static_cast<rpc::worker_id_t>(rank), worldSize,
          optionsFrom(options)),
      destroy);
}

/// This and shutDown() release the GIL, and take it to raise what a handler of a signal has raised meanwhile.
void join(Agent& agent, bool shutdown, float timeout) {
  {
    const py::gil_scoped_release release;
    agent.join(shutdown, timeout);
  }
  raisePendingSignal();
}

/// Does nothing in a forked child, which has none of the threads that this waits for.
void shutDown(Agent& agent) {
  if (agent.parts().isInherited()) {
    return;
  }
  {
    const py::gil_scoped_release release;
    agent.shutdown();
  }
  raisePendingSignal();
}

/// Releases the GIL to collect, and takes it to build Python objects.
py::list peersOf(const Agent& agent) {
  std::vector<PeerStatus> peers;
  {
    const py::gil_scoped_release release;
    peers = agent.report().peers();
  }
  py::list list;
  for (const PeerStatus& peer : peers) {
    list.append(toDict(peer));
  }
  return list;
}

/// Opaque to Python: what it is made of is given to the agent. Making one keeps the GIL.
void bindInterceptors(py::module_& module) {
  py::class_<LinkInterceptor, std::shared_ptr<LinkInterceptor>>(
      module, "LinkInterceptor", "Something that wraps the links of a worker.");
  py::class_<ChecksumInterceptor, LinkInterceptor, std::shared_ptr<ChecksumInterceptor>>(
      module, "ChecksumInterceptor", "Frames carry a checksum, and damaged ones close their link.")
      .def(py::init<>());
}

void bindStart(AgentClass& agent) {
  agent.def(
      py::init(&makeAgent), py::arg("store"), py::arg("name"), py::arg("rank"),
      py::arg("world_size"), py::arg("options"),
      "Made by rpc.init_rpc(); programs get it by rpc.api._get_current_rpc_agent().\n\n"
      "store: where the group meets, below a prefix of its own. name: at most 127 letters, digits, "
      "'_', '-' and ':'. rank: from 0. world_size: None for a dynamic group. options: what "
      "TorchwireRpcBackendOptions.as_agent_options() returns, complete.\n\n"
      "Raises RuntimeError where the store does not answer, nothing can be listened on, or the "
      "group refuses this worker.");
}

void bindEnd(AgentClass& agent) {
  agent
      .def(
          "join", &join, py::arg("shutdown") = false, py::arg("timeout") = 0,
          "Waits until no call of any worker is active (static group), or leaves the group once "
          "none of this worker's is (dynamic group).\n\n"
          "shutdown: whether the workers end after it; otherwise they go on. timeout: seconds; 0, "
          "the default: as long as it takes.\n\n"
          "Raises RuntimeError, naming the workers that are missing, when the time is over.")
      .def(
          "wait_all_workers",
          [](Agent& self, float timeout) { self.ending().waitAllWorkers(timeout); },
          py::arg("timeout") = 0, ReleaseGil(),
          "Waits until every worker of a static group that is not dead has called this; returns "
          "at once in a dynamic group.\n\n"
          "timeout: seconds; 0, the default: as long as it takes.\n\n"
          "Raises RuntimeError, naming the workers that are missing, when the time is over.")
      .def(
          "explain_leave",
          [](Agent& self, std::string reason, bool processEnds) {
            self.ending().explainLeave({std::move(reason), processEnds});
          },
          py::arg("reason"), py::arg("process_ends"), ReleaseGil(),
          "Why shutdown() will be called, for the peers' errors, as in 'it ended by ValueError: "
          "...'. The first explanation counts.")
      .def(
          "ending_processes", [](Agent& self) { return self.report().endingProcesses(); },
          ReleaseGil(),
          "The numbers of the processes on this host, which have not ended yet, of peers that left "
          "since they would.")
      .def(
          "interrupt_start",
          [](Agent& self, double patience) {
            self.starting().interrupt(
                std::chrono::milliseconds(static_cast<int64_t>(patience * 1000)));
          },
          py::arg("patience"), ReleaseGil(),
          "Ends a start that another thread is in: init_rpc raises RuntimeError there, and the "
          "other "
          "workers are told. patience: seconds for it to end. Raises nothing.")
      .def_property_readonly(
          "has_begun_to_start", [](Agent& self) { return self.starting().hasBegun(); },
          "Whether it tells the other workers of a static group itself why it does not start.")
      .def(
          "interrupt_shutdown", [](Agent& self) { self.ending().interruptShutdown(); },
          ReleaseGil(),
          "Has the other workers of a static group raise RuntimeError in rpc.shutdown(), which "
          "says "
          "that this worker was interrupted there. Raises nothing.")
      .def(
          "shutdown", &shutDown,
          "Ends the agent at once: calls that are under way fail with RpcError, peers are told, "
          "and all of its threads have ended when it returns, once the functions that run here "
          "have. Where one never returns, a handler of a signal that raises on the main thread "
          "ends the wait, and so does the end of the process after 5 s.\n\n"
          "Does nothing the second time. Raises what a handler of a signal has raised.");
}

template <typename AnyAgent>
void bindWorkerInfo(py::class_<AnyAgent, rpc::RpcAgent, std::shared_ptr<AnyAgent>>& agent) {
  using rpc::WorkerInfo;
  const auto copy = py::return_value_policy::copy;
  agent
      .def(
          "get_worker_info",
          [](const AnyAgent& self) -> const WorkerInfo& {
            return self.rpc::RpcAgent::getWorkerInfo();
          },
          copy, ReleaseGil(), "This worker's WorkerInfo: its name, and its rank as `id`.")
      .def(
          "get_worker_info",
          [](const AnyAgent& self, const std::string& name) -> const WorkerInfo& {
            return self.getWorkerInfo(name);
          },
          copy, ReleaseGil(),
          "The WorkerInfo of the worker with that name. Raises RuntimeError where there is none; "
          "in a dynamic group the store is asked first, which may take a while.")
      .def(
          "get_worker_info",
          [](const AnyAgent& self, rpc::worker_id_t id) -> const WorkerInfo& {
            return self.getWorkerInfo(id);
          },
          copy, ReleaseGil(),
          "The WorkerInfo of the worker with that rank. Raises RuntimeError where there is none; "
          "in a dynamic group the store is asked first, which may take a while.");
}

void bindWorkers(AgentClass& agent) {
  bindWorkerInfo(agent);
  agent
      .def(
          "get_worker_infos", &Agent::getWorkerInfos, ReleaseGil(),
          "The WorkerInfos of all workers that this one knows, itself included.")
      .def_property_readonly(
          "devices", &Agent::getDevices,
          "The accelerators on which this worker takes and sends tensors, as list of "
          "torch.device; empty where the options name none.")
      .def(
          "_get_device_map",
          [](const Agent& self, const rpc::WorkerInfo& to) { return self.getDeviceMap(to); },
          ReleaseGil());
}

/// Keeps the GIL, for a moment.
void bindForkedAgent(py::module_& module) {
  py::class_<ForkedAgent, rpc::RpcAgent, std::shared_ptr<ForkedAgent>> agent(
      module, "ForkedAgent", "The current agent of a process that was forked from a worker.");
  bindWorkerInfo(agent);
  agent.def_property_readonly(
      "refusal", &ForkedAgent::refusal, "Why it sends nothing, and what to do instead.");
}

using PathReasons = std::vector<std::pair<std::string, std::string>>;
using ExplainedRoute = std::tuple<c10::Device, c10::Device, std::string, std::string, PathReasons>;

/// (this worker's device, the peer's, path, reason, [(path not taken, reason)]) for each entry of the device map.
std::vector<ExplainedRoute> explainDevices(const Agent& agent, WorkerId peer) {
  std::vector<ExplainedRoute> entries;
  for (const auto& [route, path, reason, notTaken] : agent.report().explainDevices(peer)) {
    PathReasons reasons;
    for (const auto& [other, objection] : notTaken) {
      reasons.emplace_back(cuda::nameOf(other), objection);
    }
    entries.emplace_back(route.from, route.to, cuda::nameOf(path), reason, std::move(reasons));
  }
  return entries;
}

using Reasons = std::vector<std::tuple<std::string, std::string, std::string>>;

Reasons reasonsOf(const std::vector<NotTaken>& notTaken) {
  Reasons reasons;
  for (const auto& [name, reason, remedy] : notTaken) {
    reasons.emplace_back(name, reason, remedy);
  }
  return reasons;
}

/// (name, reason, remedy) for each transport, and for each channel, that the connection does not use.
std::pair<Reasons, Reasons> explainLink(const Agent& agent, WorkerId peer) {
  for (const PeerStatus& status : agent.report().peers()) {
    if (status.record.id == peer && status.link.alternatives) {
      return {
          reasonsOf(status.link.alternatives->transports),
          reasonsOf(status.link.alternatives->channels)};
    }
  }
  return {};
}

void bindState(AgentClass& agent) {
  agent
      .def_property_readonly(
          "is_static_group", [](const Agent& self) { return self.parts().isStaticGroup(); },
          "Whether all workers come at the start, as world_size says; in a dynamic group they come "
          "and go.")
      .def_property_readonly(
          "store", [](const Agent& self) { return self.parts().store; },
          "The store by which the group meets, below the prefix of this group.")
      .def(
          "peers", &peersOf,
          "A dict for each other worker: name, id, address, state, transport, channel and "
          "counters, in frames and bytes; see torchwire.peers(). Raises nothing.")
      .def(
          "change_secrets",
          [](Agent& self, const std::vector<std::string>& secrets) {
            changeSecrets(self.parts(), secrets);
          },
          py::arg("secrets"), ReleaseGil(),
          "The group's secrets from now on: this worker uses the first, and accepts all. Raises "
          "RuntimeError where the group has drawn its secret, or the store does not answer.")
      .def(
          "secret_labels", [](const Agent& self) { return secretLabels(self.parts()); },
          ReleaseGil(),
          "8 hexadecimal digits for each secret that this worker accepts, the one that it uses "
          "first; the same in all workers of the group. Raises nothing.")
      .def(
          "explain_devices", &explainDevices, py::arg("peer"), ReleaseGil(),
          "For each entry of the device map for the worker with that rank: (its device here, "
          "there, "
          "path, reason, [(path, reason)] of those that come before it); see torchwire.explain(). "
          "Empty where there is no such worker. Raises nothing.")
      .def(
          "explain_link", &explainLink, py::arg("peer"), ReleaseGil(),
          "([(name, reason, remedy)] of transports, the same of channels) that the connection to "
          "the worker with that rank does not use, though they come before those that it does; see "
          "torchwire.explain(). Empty while there has been no connection. Raises nothing.");
}

void bindAgent(py::module_& module) {
  AgentClass agent(
      module, "TorchwireAgent",
      "The RPC agent of a worker; see torchwire.TorchwireRpcBackendOptions.");
  bindStart(agent);
  bindEnd(agent);
  bindWorkers(agent);
  bindState(agent);
  bindAutograd(module, agent);
  bindCalls(module);
  bindPickledRRefs(module);
  bindRRefs(agent);
  bindMetrics(module, agent);
}

} // namespace
} // namespace torchwire

PYBIND11_MODULE(_C, module) {
  namespace rpc = torch::distributed::rpc;
  // The base classes are registered by PyTorch's own module.
  py::module_::import("torch.distributed.rpc");
  torchwire::translateErrors();
  // Rather than in init_rpc, for which other workers wait:
  torchwire::QuietStore::install();
  torchwire::findWherePythonEndsThreads();
  torchwire::ProcessIdentity::ofThisProcess();
  torchwire::bindThreadChecks(module);
  torchwire::bindInterceptors(module);
  torchwire::bindForkedAgent(module);
  torchwire::bindAgent(module);
  torchwire::bindObserver(module);
#ifdef TORCHWIRE_FAULT_INJECTION
  torchwire::bindFaults(module);
#endif
  module.attr("TRANSPORTS") = torchwire::descriptionsOf(torchwire::transportTable());
  module.attr("TRANSPORTS_WITHOUT_PROOF") = torchwire::withoutProof(torchwire::transportTable());
  module.attr("CHANNELS_WITHOUT_PROOF") = torchwire::withoutProof(torchwire::channelTable());
  module.attr("CHANNELS") = torchwire::descriptionsOf(torchwire::channelTable());
  py::class_<torchwire::ThreadPool, std::shared_ptr<torchwire::ThreadPool>>(
      module, "StoreThread", "For what is asked of the store while a worker starts.")
      .def(py::init(&torchwire::makeStoreThread));
  module.def(
      "stop_threads_where_python_ends", &torchwire::stopThreadsWherePythonEnds,
      "Has a thread that Python ends along with itself stop for good, rather than unwind its "
      "stack: "
      "that aborts where C++ is on it. May be called again.");
  module.def(
      "announce_start", &torchwire::announceStart, py::arg("store"), py::arg("name"),
      py::arg("rank"), py::arg("world_size"), py::arg("thread"),
      py::call_guard<py::gil_scoped_release>(),
      "Has the workers of a static group that wait for the one that begins to start in this "
      "process see if the "
      "process ends before it has joined. Raises what a handler of a signal raises meanwhile.");
  module.def(
      "tell_of_failed_start", &torchwire::tellOfFailedStart, py::arg("store"), py::arg("name"),
      py::arg("rank"), py::arg("world_size"), py::arg("reason"), py::arg("thread"),
      py::call_guard<py::gil_scoped_release>(),
      "Has the workers of a static group that wait for one of this process in init_rpc raise "
      "RuntimeError, which names it and says the reason. Raises nothing.");
  module.def("stock_transports", [](const rpc::TensorPipeRpcBackendOptions& options) {
    return options.transports;
  });
  module.def("stock_channels", [](const rpc::TensorPipeRpcBackendOptions& options) {
    return options.channels;
  });
}
