#include "test/unit/support/stand_in_agent.h"

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/autograd/context/container.h>

#include <stdexcept>

#include "backend/serve/owner_watch.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

constexpr WorkerId kWorkers = 8;

std::vector<StandInAgent::WorkerInfo> workers() {
  std::vector<StandInAgent::WorkerInfo> all;
  for (WorkerId id = 0; id < kWorkers; ++id) {
    all.emplace_back("worker" + std::to_string(id), static_cast<int64_t>(id));
  }
  return all;
}

/// The type in an RRef that travels.
c10::StrongTypePtr resolveType(const c10::QualifiedName& name) {
  if (name.qualifiedName() != "Tensor") {
    throw std::runtime_error("no such type: " + name.qualifiedName());
  }
  return {nullptr, at::TensorType::get()};
}

} // namespace

StandInAgent& StandInAgent::instance() {
  static const std::shared_ptr<StandInAgent> only = [] {
    c10::initLogging(); // reads TORCH_CPP_LOG_LEVEL, as Python's torch does
    // libtorch's errors have a stack trace in them, which takes longer than all else in most tests.
    c10::SetStackTraceFetcher([] { return std::string(); });
    auto agent = std::make_shared<StandInAgent>();
    RpcAgent::setCurrentRpcAgent(agent);
    torch::distributed::autograd::DistAutogradContainer::init(kSelf);
    return agent;
  }();
  return *only;
}

StandInAgent::StandInAgent()
    : RpcAgent(
          WorkerInfo("worker" + std::to_string(kSelf), static_cast<int64_t>(kSelf)), nullptr,
          std::chrono::seconds(60)),
      workers_(workers()) {
  setTypeResolver(std::make_shared<torch::distributed::rpc::TypeResolver>(resolveType));
}

std::vector<StandInAgent::Sent> StandInAgent::takeSent() {
  MutexLock lock(mutex_);
  return std::exchange(sent_, {});
}

c10::intrusive_ptr<StandInAgent::JitFuture> StandInAgent::send(
    const WorkerInfo& to, c10::intrusive_ptr<Message> message, float,
    const torch::distributed::rpc::DeviceMap&) {
  auto response = c10::make_intrusive<JitFuture>(messageType());
  MutexLock lock(mutex_);
  sent_.push_back({to.id_, message->type(), response});
  return response;
}

const std::vector<c10::Device>& StandInAgent::getDevices() const {
  OwnerWatch::devicesAsked(); // as Agent does
  return RpcAgent::getDevices();
}

const StandInAgent::WorkerInfo& StandInAgent::getWorkerInfo(const std::string& name) const {
  for (const WorkerInfo& worker : workers_) {
    if (worker.name_ == name) {
      return worker;
    }
  }
  throw std::runtime_error("no worker " + name);
}

const StandInAgent::WorkerInfo& StandInAgent::getWorkerInfo(WorkerNumber id) const {
  return workers_.at(static_cast<size_t>(id));
}

std::vector<StandInAgent::WorkerInfo> StandInAgent::getWorkerInfos() const {
  return workers_;
}

} // namespace torchwire
