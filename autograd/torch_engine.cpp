#include "autograd/torch_engine.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/functions/sendrpc_backward.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>

#include <set>
#include <stdexcept>
#include <utility>

#include "autograd/private_members.h"
#include "autograd/pass/root_pass.h"
#include "backend/base/lock_rank.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;
using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::autograd::PropagateGradientsReq;

c10::intrusive_ptr<rpc::JitFuture> openFuture() {
  return c10::make_intrusive<rpc::JitFuture>(at::AnyClassType::get());
}

void fail(rpc::JitFuture& future, const Error& error) {
  future.setError(std::make_exception_ptr(std::runtime_error(error.message())));
}

/// A reply that completes the future with what it gets, as a message of type `type`.
template <typename Result>
std::function<void(const Error&, const Result&)> replyTo(
    const c10::intrusive_ptr<rpc::JitFuture>& future, rpc::MessageType type) {
  return [future, type](const Error& error, const Result& result) {
    if (error) {
      fail(*future, error);
    } else {
      complete(*future, messageOf(encode(result), type));
    }
  };
}

rpc::MessageType typeOf(PassRequest kind) {
  switch (kind) {
    case PassRequest::discover:
      return own_messages::kDiscover;
    case PassRequest::resume:
      return own_messages::kResume;
    case PassRequest::endPass:
      break;
  }
  return own_messages::kEndPass;
}

// Errors of calls travel as text, which has all that there is to say.
Error errorOf(const rpc::JitFuture& future) {
  return future.hasError() ? Error(ErrorCode::passFailed, future.tryRetrieveErrorMessage())
                           : Error();
}

const std::vector<char>& bodyOf(const rpc::JitFuture& future) {
  return std::as_const(*future.constValue().toCustomClass<rpc::Message>()).payload();
}

} // namespace

TorchEngine::TorchEngine(rpc::RpcAgent& agent, ThreadPool& pool, Timer& timer, bool smart)
    : agent_(agent),
      pool_(pool),
      timer_(timer),
      smart_(smart),
      passes_(std::make_shared<PassTable>(
          static_cast<GraphSource&>(*this), static_cast<PassNetwork&>(*this))) {}

// ---- passes that start here ---------------------------------------------------------------------

void TorchEngine::start(
    int64_t contextId, const torch::autograd::variable_list& roots, bool retainGraph, Done done) {
  std::shared_ptr<RootPass> pass;
  try {
    const auto context = DistAutogradContainer::getInstance().retrieveContext(contextId);
    const auto root = passes_->openRoot(contextId, {smart_, retainGraph}, [&](const PassId& id) {
      return std::make_unique<GraphTask>(
          context, id, retainGraph, rootEdgesOf(roots), agent_.getWorkerInfo());
    });
    pass = std::make_shared<RootPass>(
        passes_, static_cast<PassNetwork&>(*this), root, agent_.getRpcTimeout(),
        [done](const Error& error) {
          done(error ? std::make_exception_ptr(std::runtime_error(error.message())) : nullptr);
        });
  } catch (...) {
    done(std::current_exception());
    return;
  }
  pass->start();
}

void TorchEngine::contextReleased(int64_t contextId) {
  passes_->forget(
      contextId,
      "autograd context " + std::to_string(contextId) + " was released on " + describe(self()) +
          " while a backward pass ran in it");
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
      describe(pass->id().root) + ", pass " + std::to_string(pass->id().number) + ", " +
      std::to_string(pass->waiting()) + " send functions wait";
}

void TorchEngine::peerLost(WorkerId peer) {
  passes_->rootLost(peer);
}

void TorchEngine::shutDown() {
  passes_->forgetAll(describe(self()) + " shut its RPC agent down during the backward pass");
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
        std::to_string(metadata.autogradContextId) + " on " + describe(self()) +
        ": it has ended, or was not started by torch.distributed.autograd.backward");
  }
  const GradientsHead head{pass->id(), pass->options(), metadata.autogradMessageId};
  return {
      c10::make_intrusive<Message>(
          encode(head), std::vector<at::Tensor>(gradients->getGrads()), own_messages::kGradients),
      pass};
}

void TorchEngine::track(const std::shared_ptr<Pass>& pass, const FuturePtr& future) {
  pass->sent();
  future->addCallback(
      [pass](JitFuture& answer) {
        Report report;
        Error error = errorOf(answer);
        if (!error) {
          error = read(bodyOf(answer), decodeReport, report);
        }
        pass->answered(error, report);
      },
      /*uses_future=*/true);
}

// ---- requests of other engines ------------------------------------------------------------------

TorchEngine::FuturePtr TorchEngine::serve(WorkerId caller, const Message& request) {
  switch (static_cast<int>(request.type())) { // PyTorch's enumeration does not have these
    case own_messages::kGradients:
      return serveGradients(request);
    case own_messages::kDiscover:
      return serveDiscover(request);
    case own_messages::kResume:
      return serveResume(request);
    case own_messages::kEndPass:
      return serveEndPass(caller, request);
    default:
      throw std::runtime_error("not a request to the engine: " + std::to_string(request.type()));
  }
}

TorchEngine::FuturePtr TorchEngine::serveGradients(const Message& request) {
  const GradientsHead head = decodeGradientsHead(request.payload());
  auto future = openFuture();
  const auto attach = [&head, &request] {
    DistAutogradContainer::getInstance()
        .retrieveContext(head.pass.context)
        ->retrieveSendFunction(head.send)
        ->setGrads(request.tensors());
  };
  passes_->gradients(head, attach, replyTo<Report>(future, own_messages::kGradientsDone));
  return future;
}

TorchEngine::FuturePtr TorchEngine::serveDiscover(const Message& request) {
  auto future = openFuture();
  passes_->discover(
      decodeDiscoverRequest(request.payload()),
      replyTo<Discovered>(future, own_messages::kDiscovered));
  return future;
}

TorchEngine::FuturePtr TorchEngine::serveResume(const Message& request) {
  auto future = openFuture();
  passes_->resume(decodePassId(request.payload()), replyTo<Report>(future, own_messages::kResumed));
  return future;
}

TorchEngine::FuturePtr TorchEngine::serveEndPass(WorkerId caller, const Message& request) {
  auto future = openFuture();
  passes_->endPass(decodeEndRequest(request.payload()), caller, [future](const PassEnded& ended) {
    complete(*future, messageOf(encode(ended), own_messages::kPassEnded));
  });
  return future;
}

// ---- libtorch's graphs --------------------------------------------------------------------------

bool TorchEngine::has(int64_t context) {
  const ForeignLock libtorchs(LockRank::autogradContainer); // taken to look it up
  try {
    DistAutogradContainer::getInstance().isValidContext(context);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::unique_ptr<LocalGraph> TorchEngine::open(const PassId& pass, const PassOptions& options) {
  return std::make_unique<GraphTask>(
      DistAutogradContainer::getInstance().retrieveContext(pass.context), pass, options.retainGraph,
      RootEdges(), agent_.getWorkerInfo());
}

std::unique_ptr<GraphWalk> TorchEngine::walk(int64_t context) {
  return std::make_unique<TorchGraphWalk>(
      DistAutogradContainer::getInstance().retrieveContext(context));
}

std::vector<WorkerId> TorchEngine::knownWorkers(int64_t context) {
  if (!has(context)) {
    return {};
  }
  const auto ours = DistAutogradContainer::getInstance().retrieveContext(context);
  const auto sentTo = ours->getKnownWorkerIds();
  std::set<WorkerId> known(sentTo.begin(), sentTo.end());
  for (const auto& [message, function] : ours->recvFunctions()) {
    known.insert(function.get()->*pointerTo(RecvFromWorker()));
  }
  return {known.begin(), known.end()};
}

// ---- the agent as a network ---------------------------------------------------------------------

WorkerId TorchEngine::self() const {
  return agent_.getWorkerInfo().id_;
}

std::string TorchEngine::describe(WorkerId worker) const {
  try {
    return "worker '" + agent_.getWorkerInfo(static_cast<rpc::worker_id_t>(worker)).name_ + "'";
  } catch (const std::exception&) { // it has left the group
    return "the worker with rank " + std::to_string(worker);
  }
}

std::vector<WorkerId> TorchEngine::peers() const {
  std::vector<WorkerId> others;
  for (const auto& worker : agent_.getWorkerInfos()) {
    if (worker.id_ != self()) {
      others.push_back(worker.id_);
    }
  }
  return others;
}

void TorchEngine::request(
    WorkerId to, PassRequest kind, std::vector<char> body, milliseconds limit, Answer answer) {
  FuturePtr future;
  try {
    const float seconds =
        limit == milliseconds(0) ? rpc::kUnsetRpcTimeout : static_cast<float>(limit.count()) / 1000;
    future = agent_.send(
        agent_.getWorkerInfo(static_cast<rpc::worker_id_t>(to)),
        messageOf(std::move(body), typeOf(kind)), seconds);
  } catch (const std::exception& e) {
    answer(Error(ErrorCode::passFailed, e.what()), {});
    return;
  }
  future->addCallback(
      [answer = std::move(answer)](JitFuture& done) {
        const Error error = errorOf(done);
        answer(error, error ? std::vector<char>() : bodyOf(done));
      },
      /*uses_future=*/true);
}

void TorchEngine::later(milliseconds delay, Task task) {
  timer_.after(delay, std::move(task));
}

void TorchEngine::soon(Task task) {
  if (!pool_.run(std::move(task))) {
    task(); // the agent shuts down: the pass has been ended, and only has to find that out
  }
}

} // namespace torchwire
