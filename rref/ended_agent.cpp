#include "rref/ended_agent.h"

#include <torch/csrc/distributed/rpc/message.h>
#include <torch/csrc/distributed/rpc/request_callback.h>

#include <stdexcept>

namespace torchwire {

namespace rpc = torch::distributed::rpc;

namespace {

std::runtime_error unknown(const std::string& worker) {
  return std::runtime_error(
      "worker " + worker + " was not in the RPC group whose lifetime has ended");
}

} // namespace

EndedAgent::EndedAgent(const RpcAgent& ended)
    : RpcAgent(ended.getWorkerInfo(), nullptr, ended.getRpcTimeout()),
      workers_(ended.getWorkerInfos()) {}

c10::intrusive_ptr<rpc::JitFuture> EndedAgent::send(
    const WorkerInfo& to, c10::intrusive_ptr<rpc::Message> /*message*/, float /*rpcTimeoutSeconds*/,
    const rpc::DeviceMap& /*deviceMap*/) {
  throw std::runtime_error(
      "nothing can be sent to worker '" + to.name_ +
      "' any more: rpc.shutdown() has ended the RPC lifetime of worker '" + workerInfo_.name_ +
      "'");
}

const rpc::WorkerInfo& EndedAgent::getWorkerInfo(const std::string& name) const {
  for (const WorkerInfo& worker : workers_) {
    if (worker.name_ == name) {
      return worker;
    }
  }
  throw unknown("'" + name + "'");
}

const rpc::WorkerInfo& EndedAgent::getWorkerInfo(rpc::worker_id_t id) const {
  for (const WorkerInfo& worker : workers_) {
    if (worker.id_ == id) {
      return worker;
    }
  }
  throw unknown(std::to_string(id));
}

} // namespace torchwire
