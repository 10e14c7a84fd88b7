#include "backend/serve/profiled_call.h"

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/profiler.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_profiling_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_profiling_resp.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "backend/base/log.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
namespace autograd = torch::distributed::autograd;
namespace profiler = torch::autograd::profiler;
using profiler::ProfilerConfig;
using profiler::ProfilerState;

/// What the caller's profiler is here: only the legacy one can send its events, and this worker may lack CUDA.
ProfilerConfig localConfig(const ProfilerConfig& asked, bool cudaAvailable) {
  const bool kineto =
      asked.state == ProfilerState::KINETO || asked.state == ProfilerState::KINETO_GPU_FALLBACK;
  const bool missing = asked.state == ProfilerState::CUDA && !cudaAvailable;
  if (missing) {
    log(LogLevel::warning,
        "a caller profiles with CUDA, which this worker does not have: it profiles the CPU only");
  }
  return kineto || missing
      ? ProfilerConfig(ProfilerState::CPU, asked.report_input_shapes, asked.profile_memory)
      : asked;
}

ValueWithStorages withEvents(
    rpc::JitFuture& done, const ProfilerConfig& config, const rpc::ProfilingId& id) {
  // The thread that took the request cleans its own profiler up; here all threads' events are gathered.
  const profiler::ProfilerDisableOptions gather(
      /* cleanupTLSState */ false, /* consolidate */ true);
  const auto lists = profiler::disableProfilerLegacy(gather);
  if (done.hasError()) {
    std::rethrow_exception(done.exception_ptr());
  }
  std::vector<profiler::LegacyEvent> events;
  rpc::populateRemoteProfiledEvents(events, config, lists);
  autograd::RpcWithProfilingResp response(
      rpc::MessageType::RUN_WITH_PROFILING_RESP, done.value().toCustomClass<rpc::Message>(),
      std::move(events), id);
  return withDeviceStorages(std::move(response).toMessage());
}

c10::intrusive_ptr<rpc::JitFuture> profiledCall(
    const Dispatcher& dispatcher, WorkerId caller, rpc::RpcCommandBase& command) {
  auto& call = static_cast<autograd::RpcWithProfilingReq&>(command);
  const ProfilerConfig config = localConfig(call.getProfilingConfig(), dispatcher.cudaAvailable());
  // Takes the profiler off this thread at the end, and leaves its events for the continuation: an async
  // function is not over by then.
  const profiler::TLSLegacyProfilerGuard whileItRuns(
      config, std::nullopt,
      profiler::ProfilerDisableOptions(/* cleanupTLSState */ true, /* consolidate */ false));
  auto wrapped = dispatcher.run(caller, call.wrappedRpc(), call.wrappedMessageType());
  return wrapped->then(
      at::wrapPropagateTLSState([config, id = call.getProfilingId()](rpc::JitFuture& done) {
        return withEvents(done, config, id);
      }),
      messageType());
}

} // namespace

void serveProfiledCalls(Dispatcher& dispatcher) {
  dispatcher.handle(
      rpc::MessageType::RUN_WITH_PROFILING_REQ,
      [&dispatcher](WorkerId caller, rpc::RpcCommandBase& command) {
        return profiledCall(dispatcher, caller, command);
      });
}

} // namespace torchwire
