#include "autograd/torch_engine.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>

#include <stdexcept>
#include <utility>

#include "autograd/context_lifetime.h"
#include "autograd/engine_service.h"
#include "autograd/pass/root_pass.h"
#include "backend/base/call_error.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {

namespace rpc = torch::distributed::rpc;
using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::autograd::PropagateGradientsReq;

TorchEngine::TorchEngine(
    rpc::RpcAgent& agent, ThreadPool& pool, Timer& timer, bool smart,
    std::shared_ptr<CallMetrics> metrics)
    : agent_(agent),
      smart_(smart),
      graphs_(agent),
      network_(agent, pool, timer),
      trace_(std::move(metrics)),
      passes_(std::make_shared<PassTable>(graphs_, network_, [trace = trace_](const PassId& pass) {
        return trace.joined(pass);
      })) {}

void TorchEngine::serve(Dispatcher& dispatcher) {
  serveEngines(dispatcher, *passes_, trace_);
}

// ---- passes that start here ---------------------------------------------------------------------

void TorchEngine::start(
    int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph, Done done) {
  std::shared_ptr<RootPass> pass;
  const auto begun = trace_.now();
  try {
    expectOfThisLifetime(contextId);
    const auto context = DistAutogradContainer::getInstance().retrieveContext(contextId);
    RootEdges edges = rootEdgesOf(roots); // unlocked: runs operators, on the roots' devices
    const auto root = passes_->openRoot(contextId, {smart_, retainGraph}, [&](const PassId& id) {
      return std::make_unique<GraphTask>(
          context, id, retainGraph, std::move(edges), agent_.getWorkerInfo());
    });
    pass = std::make_shared<RootPass>(
        passes_, network_, root, agent_.getRpcTimeout(),
        [done, ended = trace_.started(root.pass->id(), begun)](const Error& error) {
          if (ended) { // first: who waits for the pass may stop the trace
            ended(error);
          }
          done(error ? exceptionOf(error) : nullptr);
        });
  } catch (...) {
    done(std::current_exception());
    return;
  }
  pass->start();
}

void TorchEngine::cancel(int64_t contextId) {
  if (const auto pass = passes_->running(contextId)) {
    pass->abort(Error(
        ErrorCode::cancelled,
        "the backward pass of autograd context " + std::to_string(contextId) +
            " was cancelled on " + network_.describe(network_.self())));
  }
}

void TorchEngine::contextReleased(int64_t contextId) {
  passes_->forget(
      contextId,
      "autograd context " + std::to_string(contextId) + " was released on " +
          network_.describe(network_.self()) + " while a backward pass ran in it");
}

uint64_t TorchEngine::passesStarted() const {
  return passes_->passesStarted();
}

std::optional<std::string> TorchEngine::describePass(int64_t contextId) {
  const auto pass = passes_->running(contextId);
  if (!pass) {
    return std::nullopt;
  }
  return std::string(pass->options().smart ? "smart" : "fast") + ", from " +
      network_.describe(pass->id().root) + ", pass " + std::to_string(pass->id().number) + ", " +
      std::to_string(pass->waiting()) + " send functions wait";
}

void TorchEngine::peerLost(WorkerId peer) {
  passes_->rootLost(peer);
}

void TorchEngine::shutDown(const std::string& reason) {
  passes_->forgetAll(
      network_.describe(network_.self()) + " shut its RPC agent down during the backward pass" +
      (reason.empty() ? "" : ": " + reason));
}

// ---- requests of recv functions -----------------------------------------------------------------

std::pair<TorchEngine::MessagePtr, std::shared_ptr<Pass>> TorchEngine::gradientsRequest(
    MessagePtr message) {
  const auto gradients = PropagateGradientsReq::fromMessage(*message);
  const auto& metadata = gradients->getAutogradMetadata();
  const auto pass = passes_->running(metadata.autogradContextId);
  const PassId* const current = GraphTask::current(); // null on the threads of devices
  if (!pass || (current != nullptr && *current != pass->id())) {
    throw std::runtime_error(
        "no backward pass of torchwire's runs in autograd context " +
        std::to_string(metadata.autogradContextId) + " on " + network_.describe(network_.self()) +
        ": it has ended, or was not started by torch.distributed.autograd.backward");
  }
  const GradientsHead head{pass->id(), pass->options(), metadata.autogradMessageId};
  return {
      c10::make_intrusive<Message>(
          encode(head), std::vector<at::Tensor>(gradients->getGrads()), own_messages::kGradients),
      pass};
}

void TorchEngine::track(const std::shared_ptr<Pass>& pass, const FuturePtr& future) {
  pass->noteSent();
  future->addCallback(
      [pass](JitFuture& answer) {
        Report report;
        Error error = passErrorOf(answer);
        if (!error) {
          error = read(bodyOf(answer), decodeReport, report);
        }
        pass->onResponse(error, report);
      },
      /*uses_future=*/true);
}

} // namespace torchwire
