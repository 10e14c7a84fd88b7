#include "test/unit/support/serving_worker.h"

#include <utility>

#include "backend/base/thread_role.h"
#include "backend/codec/codec.h"
#include "test/unit/support/stand_in_agent.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;

ServingWorker::ServingWorker(size_t threads, std::shared_ptr<ResponseLog> responses)
    : responses_(std::move(responses)),
      requests_(std::make_shared<ThreadPool>(threads, kRequestThread)),
      control_(std::make_shared<ThreadPool>(threads, kControlThread)),
      devices_(std::make_shared<cuda::GroupDevices>(cuda::DeviceRecord())),
      server_(
          std::make_shared<Server>(
              dispatcher_,
              [this](uint32_t type, Task&& task) {
                return (isControl(type) ? control_ : requests_)->run(std::move(task));
              },
              Disposer(control_),
              [log = responses_](WorkerId caller, OutgoingFrame frame) {
                log->add(caller, std::move(frame));
              },
              devices_, std::make_shared<cuda::Transfers>(0, devices_, requests_, ""), requests_,
              std::make_shared<CallMetrics>())) {
  StandInAgent::instance();
  dispatcher_.runFunctionsOn([this](Task&& task) { return requests_->run(std::move(task)); });
}

ServingWorker::~ServingWorker() {
  requests_->join();
  control_->join();
}

bool ServingWorker::deliver(WorkerId caller, ReceivedFrame request) {
  const DeliverScope delivering;
  return server_->serve(caller, std::move(request));
}

bool ServingWorker::deliver(
    WorkerId caller, uint64_t callId, c10::intrusive_ptr<rpc::Message> request) {
  return deliver(caller, frameOf(callId, std::move(request)));
}

c10::intrusive_ptr<rpc::Message> ServingWorker::call(
    WorkerId caller, uint64_t callId, c10::intrusive_ptr<rpc::Message> request) {
  deliver(caller, callId, std::move(request));
  return responses_->waitFor(caller, callId);
}

ReceivedFrame frameOf(uint64_t callId, c10::intrusive_ptr<rpc::Message> request) {
  const Disposer disposer(std::make_shared<ThreadPool>(1, "test_disposer"));
  OutgoingFrame frame = encodeMessage(FrameKind::request, std::move(request), disposer);
  setCallId(frame, callId);
  return readHeader(loopBack(std::move(frame)));
}

} // namespace torchwire
