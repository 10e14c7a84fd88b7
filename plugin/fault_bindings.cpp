// What Python sees of the fault injection. Bindings only convert; each says how it treats the GIL.
#include "plugin/fault_bindings.h"

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <stdexcept>

#include "backend/faults/fault_interceptor.h"
#include "backend/faults/faulty_channel.h"
#include "backend/serve/own_messages.h"
#include "backend/tensorpipe/channel_interceptor.h"

namespace py = pybind11;

namespace torchwire {
namespace {

using faults::Action;
using faults::Duration;
using faults::Entry;
using faults::FaultInterceptor;
using faults::FaultLog;
using faults::Phase;
using faults::Plan;
using faults::Rule;

constexpr std::array kPhases = {
    Phase::connect, Phase::request, Phase::inFlight, Phase::response, Phase::midTensor};
constexpr std::array kActions = {Action::drop,      Action::fail,     Action::delay,
                                 Action::duplicate, Action::reorder,  Action::corrupt,
                                 Action::close,     Action::refuse,   Action::pause,
                                 Action::kill,      Action::partition};

template <typename Values>
auto valueNamed(const Values& values, const std::string& name) {
  for (const auto value : values) {
    if (name == faults::nameOf(value)) {
      return value;
    }
  }
  throw std::invalid_argument("a fault plan has an unknown name: " + name);
}

Duration durationFrom(const py::dict& dict) {
  const auto shape = dict["shape"].cast<std::string>();
  Duration duration;
  duration.shape = shape == "uniform" ? Duration::Shape::uniform
      : shape == "normal"             ? Duration::Shape::normal
      : shape == "exponential"        ? Duration::Shape::exponential
                                      : Duration::Shape::fixed;
  duration.a = dict["a"].cast<double>();
  duration.b = dict["b"].cast<double>();
  return duration;
}

Rule ruleFrom(const py::dict& dict) {
  using Names = std::vector<std::string>;
  Rule rule;
  rule.name = dict["name"].cast<std::string>();
  rule.action = valueNamed(kActions, dict["action"].cast<std::string>());
  rule.phase = valueNamed(kPhases, dict["phase"].cast<std::string>());
  rule.messages = dict["messages"].cast<std::vector<uint32_t>>();
  rule.from = dict["from"].cast<Names>();
  rule.to = dict["to"].cast<Names>();
  rule.nth = dict["nth"].cast<std::vector<uint64_t>>();
  rule.probability = dict["probability"].cast<double>();
  rule.atLeast = dict["at_least"].cast<uint64_t>();
  rule.atMost = dict["at_most"].cast<uint64_t>();
  rule.eachMessage = dict["each_message"].cast<bool>();
  rule.seconds = durationFrom(dict["seconds"]);
  rule.after = dict["after"].cast<double>();
  rule.byte = dict["byte"].cast<std::optional<uint64_t>>();
  return rule;
}

Plan planFrom(const py::dict& dict) {
  Plan plan;
  plan.revision = dict["revision"].cast<uint64_t>();
  plan.seed = dict["seed"].cast<uint64_t>();
  for (const py::handle rule : dict["rules"]) {
    plan.rules.push_back(ruleFrom(py::cast<py::dict>(rule)));
  }
  return plan;
}

py::dict toDict(const Entry& entry) {
  py::dict dict;
  dict["time"] = entry.time;
  dict["worker"] = entry.worker;
  dict["revision"] = entry.revision;
  dict["rule"] = entry.rule;
  dict["action"] = faults::nameOf(entry.action);
  dict["phase"] = faults::nameOf(entry.phase);
  dict["from"] = entry.from;
  dict["to"] = entry.to;
  dict["message"] = entry.message;
  dict["call_id"] = entry.callId;
  dict["occurrence"] = entry.occurrence;
  dict["seconds"] = entry.seconds;
  dict["byte"] = entry.byte;
  return dict;
}

/// An interceptor with the log that it writes. Thread-safe.
class LoggingFaultInterceptor final : public LinkInterceptor, public ChannelInterceptor {
 public:
  LoggingFaultInterceptor(
      const std::string& worker, const py::dict& plan, const std::string& logPath)
      : log_(std::make_shared<FaultLog>(logPath)), interceptor_(worker, planFrom(plan), log_) {}

  uint32_t linkOption() const override {
    return interceptor_.linkOption();
  }
  std::unique_ptr<LinkContext> wrap(std::unique_ptr<LinkContext> links, Timer& timer) override {
    return interceptor_.wrap(std::move(links), timer);
  }
  std::shared_ptr<Link> wrapLoopback(std::shared_ptr<Link> link, Timer& timer) override {
    return interceptor_.wrapLoopback(std::move(link), timer);
  }
  std::shared_ptr<tensorpipe::channel::Context> wrapChannel(
      std::shared_ptr<tensorpipe::channel::Context> channel) override {
    return faults::makeFaultyChannel(std::move(channel), interceptor_.midTensor());
  }

  FaultInterceptor& interceptor() {
    return interceptor_;
  }
  const FaultLog& log() const {
    return *log_;
  }

 private:
  const std::shared_ptr<FaultLog> log_;
  FaultInterceptor interceptor_;
};

py::dict messageTypes() {
  using enum torch::distributed::rpc::MessageType;
  py::dict types;
#define TORCHWIRE_TYPE(name) types[#name] = static_cast<uint32_t>(name)
  TORCHWIRE_TYPE(SCRIPT_CALL);
  TORCHWIRE_TYPE(PYTHON_CALL);
  TORCHWIRE_TYPE(SCRIPT_REMOTE_CALL);
  TORCHWIRE_TYPE(PYTHON_REMOTE_CALL);
  TORCHWIRE_TYPE(SCRIPT_RREF_FETCH_CALL);
  TORCHWIRE_TYPE(PYTHON_RREF_FETCH_CALL);
  TORCHWIRE_TYPE(RREF_USER_DELETE);
  TORCHWIRE_TYPE(RREF_FORK_REQUEST);
  TORCHWIRE_TYPE(RREF_CHILD_ACCEPT);
  TORCHWIRE_TYPE(FORWARD_AUTOGRAD_REQ);
  TORCHWIRE_TYPE(CLEANUP_AUTOGRAD_CONTEXT_REQ);
  TORCHWIRE_TYPE(RUN_WITH_PROFILING_REQ);
  TORCHWIRE_TYPE(RREF_BACKWARD_REQ);
#undef TORCHWIRE_TYPE
  for (const OwnRequest& request : own_messages::kOfModules) {
    types[request.name] = request.type;
  }
  for (const OwnRequest& request : own_requests::kOfNodes) {
    types[request.name] = request.type;
  }
  return types;
}

/// Takes the GIL to read the plan only: what a partition held goes on from here, on this thread.
void setPlan(LoggingFaultInterceptor& self, const py::dict& dict) {
  Plan plan = planFrom(dict);
  const py::gil_scoped_release release;
  self.interceptor().setPlan(std::move(plan));
}

/// Keeps the GIL.
py::list logOf(const LoggingFaultInterceptor& self) {
  py::list list;
  for (const Entry& entry : self.log().entries()) {
    list.append(toDict(entry));
  }
  return list;
}

} // namespace

void bindFaults(py::module_& module) {
  py::class_<LoggingFaultInterceptor, LinkInterceptor, std::shared_ptr<LoggingFaultInterceptor>>(
      module, "FaultInterceptor", "Injects faults on the links of a worker; see torchwire.testing.")
      .def(
          py::init<const std::string&, const py::dict&, const std::string&>(), py::arg("worker"),
          py::arg("plan"), py::arg("log_path"))
      .def("set_plan", &setPlan, py::arg("plan"))
      .def("log", &logOf, "One dict for each injected fault, in order.");
  module.attr("FAULT_MESSAGE_TYPES") = messageTypes();
}

} // namespace torchwire
