#include "autograd/container.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_resp.h>
#include <torch/csrc/distributed/autograd/rpc_messages/rpc_with_autograd.h>

#include <mutex>
#include <stdexcept>
#include <utility>

#include "autograd/context_lifetime.h"
#include "autograd/direct_forward.h"
#include "autograd/forward_call.h"
#include "autograd/private_members.h"
#include "backend/base/lock_rank.h"
#include "backend/base/log.h"
#include "backend/serve/response.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
namespace autograd = torch::distributed::autograd;
using autograd::DistAutogradContainer;

// A worker that did not answer is told again after 1, 1.5, 2.25 ... s, 13 s in all: long enough for a link that broke
// to come back, and few enough for a worker that is dead, whom every context that it was part of tells in vain. Besides,
// all others have been told by then.
constexpr int kRetries = 5;

ContextRegistry::Workers knownTo(const autograd::DistAutogradContext& context) {
  const auto known = context.getKnownWorkerIds();
  return {known.begin(), known.end()};
}

std::optional<ContextRegistry::Taken> take(ContextId id) {
  auto& container = DistAutogradContainer::getInstance();
  autograd::ContextPtr context;
  for (auto& shard : container.*pointerTo(ContainerShards())) { // few, and hardly ever locked
    const ForeignLock rank(LockRank::autogradContainer);
    const std::lock_guard<std::mutex> lock(shard.lock);
    if (auto node = shard.contexts.extract(id)) {
      context = std::move(node.mapped());
      break;
    }
  }
  if (context == nullptr) {
    return std::nullopt;
  }
  ContextRegistry::Workers known = knownTo(*context);
  known.erase(container.getWorkerId()); // from calls to itself
  return ContextRegistry::Taken{std::move(known), std::move(context)};
}

std::vector<autograd::ContextPtr> allContexts() {
  std::vector<autograd::ContextPtr> all;
  for (auto& shard : DistAutogradContainer::getInstance().*pointerTo(ContainerShards())) {
    const ForeignLock rank(LockRank::autogradContainer);
    const std::lock_guard<std::mutex> lock(shard.lock);
    for (const auto& [id, context] : shard.contexts) {
      all.push_back(context);
    }
  }
  return all;
}

} // namespace

Container::Container(rpc::RpcAgent& agent, std::weak_ptr<Engine> engine)
    : agent_(agent),
      engine_(std::move(engine)),
      registry_(std::make_shared<ContextRegistry>(outside(), ContextRegistry::Limits())) {}

ContextRegistry::Outside Container::outside() {
  ContextRegistry::Outside outside;
  outside.take = take;
  outside.tell = [this](WorkerId worker, ContextId id, const ContextRegistry::Told& told) {
    tell(worker, id, told);
  };
  outside.peers = [this] { return peers(); };
  outside.gone = [engine = engine_](ContextId id) {
    if (const auto alive = engine.lock()) {
      alive->contextReleased(id);
    }
  };
  return outside;
}

void Container::forgetEarlierGroup() {
  std::vector<autograd::ContextPtr> all;
  try {
    all = allContexts();
  } catch (
      const c10::
          Error&) { // init_rpc makes libtorch's container; who starts an agent without it has none yet
    return;
  }
  for (const auto& context : all) {
    if (creatorOf(context->contextId()) != agent_.getWorkerInfo().id_) {
      take(context->contextId());
    }
  }
}

void Container::beginIdsAt(uint64_t random) {
  constexpr int64_t kDrawn = int64_t{1} << 32; // more than a process gives before it joins a group
  const auto skipped = kDrawn + static_cast<int64_t>(random >> (64 - kContextCounterBits + 1));
  try {
    auto& container = DistAutogradContainer::getInstance();
    auto& context = container.*pointerTo(NextContextId());
    if (context % (int64_t{1} << kContextCounterBits) < kDrawn) {
      context += skipped;
      container.*pointerTo(NextAutogradMessageId()) += skipped;
    }
  } catch (const c10::Error&) { // as in forgetEarlierGroup()
  }
}

// ---- calls --------------------------------------------------------------------------------------

void Container::serve(Dispatcher& dispatcher, MapBack mapBack) {
  using rpc::MessageType;
  using rpc::RpcCommandBase;
  dispatcher.handle(
      MessageType::FORWARD_AUTOGRAD_REQ,
      [this, &dispatcher](WorkerId caller, RpcCommandBase& command) {
        const auto& call = static_cast<autograd::RpcWithAutograd&>(command);
        return during(call.autogradMetadata().autogradContextId, [&] {
          return forwardCall(dispatcher, caller, command);
        });
      });
  dispatcher.handleDirectForwards(
      [this, &dispatcher, mapBack = std::move(mapBack)](
          WorkerId caller, Message& request) -> c10::intrusive_ptr<JitFuture> {
        const auto context = contextOfDirectForward(request);
        if (!context) {
          return nullptr;
        }
        return during(*context, [&] {
          return serveDirectForward(caller, request, mapBack(caller), [&](Message& call) {
            return dispatcher.runDirectCall(call);
          });
        });
      });
  dispatcher.handle(
      MessageType::CLEANUP_AUTOGRAD_CONTEXT_REQ,
      [this](WorkerId from, RpcCommandBase& command) { return serveRelease(from, command); });
}

// Until the future of what `serve` returns is complete, the context stays.
c10::intrusive_ptr<rpc::JitFuture> Container::during(
    ContextId id, const std::function<c10::intrusive_ptr<JitFuture>()>& serve) {
  registry_->callBegins(id);
  c10::intrusive_ptr<JitFuture> response;
  try {
    response = serve();
  } catch (...) {
    registry_->callEnds(id);
    throw;
  }
  response->addCallback([registry = registry_, id](JitFuture&) { registry->callEnds(id); });
  return response;
}

// libtorch attaches the thread's context to a request right before it hands the request over, on the same thread.
std::optional<ContextId> Container::contextOf(const Message& request) {
  const rpc::MessageType type = request.type();
  const ContextId id = DistAutogradContainer::currentContextId();
  const bool mayCarryOne = type == rpc::MessageType::FORWARD_AUTOGRAD_REQ ||
      type == rpc::MessageType::RUN_WITH_PROFILING_REQ;
  return mayCarryOne && id >= 0 ? std::optional(id) : std::nullopt;
}

// ---- releases -----------------------------------------------------------------------------------

void Container::release(ContextId id) {
  if (isOfEndedLifetime(id)) {
    leaveEndedContext();
    return;
  }
  DistAutogradContainer::getInstance().isValidContext(id); // throws
  if (DistAutogradContainer::currentContextId() == id) {
    DistAutogradContainer::getInstance().clearCurrentContext();
  }
  registry_->release(id, std::nullopt, [](bool) {});
}

// Answers when the context is released here and wherever it has gone from here: with an error where that is not known,
// so that whoever asks tells all others.
c10::intrusive_ptr<rpc::JitFuture> Container::serveRelease(
    WorkerId from, Dispatcher::RpcCommandBase& command) {
  const ContextId id = static_cast<autograd::CleanupAutogradContextReq&>(command).getContextId();
  auto response = c10::make_intrusive<JitFuture>(messageType());
  registry_->release(id, from, [response, id](bool everywhere) {
    if (everywhere) {
      complete(*response, autograd::CleanupAutogradContextResp().toMessage());
    } else {
      response->setError(
          std::make_exception_ptr(
              std::runtime_error(
                  "the release of autograd context " + std::to_string(id) +
                  " was not confirmed by all workers that it was passed on to")));
    }
  });
  return response;
}

void Container::tell(WorkerId worker, ContextId id, const ContextRegistry::Told& told) {
  c10::intrusive_ptr<JitFuture> answer;
  try {
    const auto& to = agent_.getWorkerInfo(static_cast<rpc::worker_id_t>(worker));
    answer = agent_.send(to, autograd::CleanupAutogradContextReq(id).toMessage());
  } catch (const std::exception& e) { // it has left the group, or this worker is shutting down
    log(LogLevel::debug,
        std::string("the release of an autograd context was not passed on: ") + e.what());
    told(false);
    return;
  }
  answer->addCallback([this, worker, id, told](JitFuture& done) {
    if (done.hasError()) {
      tellAgain(worker, id);
    }
    told(!done.hasError());
  });
}

void Container::tellAgain(WorkerId worker, ContextId id) {
  rpc::RpcRetryOptions options;
  options.maxRetries = kRetries;
  try {
    const auto& to = agent_.getWorkerInfo(static_cast<rpc::worker_id_t>(worker));
    agent_.sendWithRetries(to, autograd::CleanupAutogradContextReq(id).toMessage(), options)
        ->addCallback([to = to.name_, id](JitFuture& done) {
          if (done.hasError()) {
            log(LogLevel::info,
                "worker '" + to + "' was not reached to release autograd context " +
                    std::to_string(id) +
                    "; if it lives, it keeps the context until the worker that opened it leaves");
          }
        });
  } catch (const std::exception& e) {
    log(LogLevel::debug,
        std::string("the release of an autograd context is not repeated: ") + e.what());
  }
}

ContextRegistry::Workers Container::peers() const {
  ContextRegistry::Workers others;
  for (const auto& worker : agent_.getWorkerInfos()) {
    if (worker.id_ != agent_.getWorkerInfo().id_) {
      others.insert(worker.id_);
    }
  }
  return others;
}

// ---- listing ------------------------------------------------------------------------------------

std::vector<ContextStatus> Container::list() const {
  std::vector<ContextStatus> all;
  for (const auto& context : allContexts()) {
    all.push_back(statusOf(*context));
  }
  return all;
}

ContextStatus Container::statusOf(autograd::DistAutogradContext& context) const {
  ContextStatus status{};
  status.id = context.contextId();
  status.creator = creatorOf(status.id);
  status.known = knownTo(context);
  status.sendFunctions = context.sendFunctions().size();
  status.recvFunctions = context.recvFunctions().size();
  {
    const ForeignLock rank(LockRank::autogradContext);
    const std::lock_guard<std::mutex> lock(context.*pointerTo(ContextLock()));
    status.gradients = (context.*pointerTo(ContextGradients())).size();
  }
  status.registry = registry_->status(status.id);
  if (const auto engine = engine_.lock()) {
    status.backward = engine->describePass(status.id);
  }
  return status;
}

} // namespace torchwire
