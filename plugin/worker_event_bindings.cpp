#include "plugin/worker_event_bindings.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "backend/base/log.h"
#include "plugin/error_bindings.h"

namespace py = pybind11;

namespace torchwire {
namespace {

template <typename... More>
void tell(const char* function, const WorkerRecord& worker, const More&... more) {
  const py::gil_scoped_acquire gil;
  try {
    const torch::distributed::rpc::WorkerInfo info(
        worker.name, static_cast<torch::distributed::rpc::worker_id_t>(worker.id));
    py::module_::import("torchwire.worker_events").attr(function)(info, toPython(more)...);
  } catch (const py::error_already_set& e) { // Python is about to end
    log(LogLevel::info, std::string("the program was not told of a worker: ") + e.what());
  }
}

} // namespace

WorkerEvents pythonsWorkerEvents() {
  WorkerEvents events;
  events.lost = [](const WorkerRecord& worker, const Error& error) {
    tell("worker_lost", worker, error.to(worker.name));
  };
  events.joined = [](const WorkerRecord& worker) { tell("worker_joined", worker); };
  return events;
}

} // namespace torchwire
