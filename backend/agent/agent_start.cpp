#include "backend/agent/agent_start.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "autograd/context_lifetime.h"
#include "backend/agent/call_end.h"
#include "backend/agent/failed_start.h"
#include "backend/agent/observer_answers.h"
#include "backend/agent/torch_store.h"
#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/base/random.h"
#include "backend/link/loopback_link.h"
#include "backend/membership/bounded_store.h"
#include "backend/serve/own_messages.h"
#include "backend/serve/signals.h"
#include "backend/tensorpipe/observers.h"
#include "backend/transport/loop.h"
#include "backend/wire/record_cipher.h"
#include "rref/context_lifetime.h"

namespace torchwire {
namespace {

namespace rpc = torch::distributed::rpc;
using std::chrono::milliseconds;

// A session goes on over another connection sooner than TCP finds its way again: that asks ever more rarely.
constexpr milliseconds kLossTimeout{1800};
// Workers of a group start minutes apart on a busy cluster, whatever their time-out for calls is.
constexpr milliseconds kMinWaitForGroup{60000};

ThreadPool& poolOf(Pools& pools, uint32_t messageType) {
  if (own_messages::isEvaluation(messageType)) {
    return pools.evaluations;
  }
  return isControl(messageType) ? *pools.control : pools.requests;
}

} // namespace

void AgentStart::run(const std::shared_ptr<rpc::RpcAgent>& current) {
  parts_.expectOwnProcess();
  const StartInterruption::Scope starting(*interruption_);
  openMembership();
  try {
    joinGroup(current);
  } catch (const Interrupted&) {
    parts_.membership->giveUpStart(
        parts_.membership->self().describe() + " was interrupted in init_rpc");
    throw;
  } catch (const std::exception& e) {
    parts_.membership->giveUpStart(describeFailedStart(parts_.membership->self(), e.what()));
    throw;
  }
}

void AgentStart::joinGroup(const std::shared_ptr<rpc::RpcAgent>& current) {
  const bool another = current && beginRRefs(current);
  if (another) {
    endContexts();
  }
  parts_.contexts.forgetEarlierGroup();
  if (parts_.isOpen() || another) {
    beginIdsElsewhere();
  }
  startThreads();
  openLinks(parts_.membership->agree(parts_.options.secrets));
  enter(parts_.node.links()->listen());
  if (!parts_.isStaticGroup() || parts_.membership->cameLater()) {
    parts_.node.introduce(checkSignals);
  }
}

// Where there can be no more of them, that shows here and not in a callback; and what a process that comes to its limit
// later has suffices to serve.
void AgentStart::startThreads() {
  parts_.timer.after(milliseconds(0), [] {});
  freshState(); // so that a child that is forked later has it, too
  parts_.pools.start();
}

// libtorch counts them from 0 in each process. One that comes in place of another, or as another worker than before, would
// give the ids again that are still in use elsewhere.
void AgentStart::beginIdsElsewhere() {
  parts_.rrefs->beginIdsAt(randomNumber());
  parts_.contexts.beginIdsAt(randomNumber());
}

void AgentStart::openMembership() {
  WorkerRecord self = ownRecord(parts_.self.name_, parts_.self.id_);
  self.devices = parts_.devices->encodedSelf();
  for (const auto& interceptor : parts_.options.interceptors) {
    self.linkOptions |= interceptor->linkOption();
  }
  if (parts_.isStaticGroup() && parts_.options.elastic) {
    self.linkOptions |= link_options::kElastic;
  }
  if (parts_.options.encryption == Encryption::off) {
    self.linkOptions |= link_options::kUnencrypted;
  }
  const InterruptionCheck check = [interruption = interruption_] { interruption->check(); };
  parts_.membership = std::make_unique<Membership>(
      std::make_unique<BoundedStore>(
          std::make_unique<TorchStore>(parts_.store), parts_.storeTimeout(), check,
          parts_.options.storeThread),
      std::move(self), parts_.worldSize, std::max(parts_.rpcTimeout(), kMinWaitForGroup),
      std::make_unique<SystemClock>(check),
      [&parts = parts_](const WorkerRecord& worker, bool asksHost) {
        return hasEnded(worker, parts.address, asksHost);
      });
}

TensorPipeOptions AgentStart::linkSettings() {
  parts_.chosen = chooseAddress(parts_.options.bindAddress, hostOfStore(parts_.store));
  TensorPipeOptions options;
  options.workerName = parts_.self.name_;
  options.bindAddress = parts_.chosen.address;
  if (!parts_.options.advertiseAddress.empty()) {
    options.advertiseAddress = resolve(parts_.options.advertiseAddress);
  }
  if (options.advertiseAddress.empty() && isWildcard(parts_.chosen.address)) {
    options.advertiseAddress = chooseAddress("", hostOfStore(parts_.store)).address;
  }
  options.transports = parts_.options.transports;
  options.channels = parts_.options.channels;
  options.keys = parts_.keys;
  options.encryption = parts_.options.encryption;
  options.keepAlive = parts_.options.keepAlive;
  if (parts_.options.sessionTimeout.count() != 0) {
    options.lossTimeout = kLossTimeout;
  }
  options.loop = parts_.loop;
  for (const auto& interceptor : parts_.options.interceptors) {
    if (auto ofChannels = std::dynamic_pointer_cast<ChannelInterceptor>(interceptor)) {
      options.interceptors.push_back(std::move(ofChannels));
    }
  }
  return options;
}

void AgentStart::openLinks(const std::vector<GroupKey>& keys) {
  parts_.keys = std::make_shared<KeyRing>(keys);
  parts_.loop = Loop::start("torchwire_io");
  parts_.processes = std::make_unique<ProcessWatch>(parts_.loop);
  parts_.pools.evaluations.driveWhenIdle(
      parts_.loop, [engine = parts_.engine] { return engine->hasPasses(); });
  parts_.buffers = std::make_shared<BufferPool>(parts_.options.receiveCache, parts_.timer);
  parts_.context = makeTensorPipeContext(linkSettings(), parts_.buffers, parts_.timer);
  LinkContext& innermost = *parts_.context;
  for (const auto& interceptor : parts_.options.interceptors) {
    parts_.context = interceptor->wrap(std::move(parts_.context), parts_.timer);
  }
  parts_.node.open(*parts_.context, *parts_.processes, *parts_.membership);
  parts_.groupEnd = std::make_unique<GroupEnd>(
      GroupEnd::Worker{parts_.node, *parts_.membership, parts_.activeCalls, checkSignals});
  startServer();
  // Not before there are links and a server: answers tell of them.
  admitObservers(innermost, answersForObservers(parts_.pools.copies, parts_.options.answer));
  parts_.node.links()->addLoopback(parts_.membership->self(), loopback());
}

std::shared_ptr<Link> AgentStart::loopback() {
  std::shared_ptr<Link> link = std::make_shared<LoopbackLink>();
  for (const auto& interceptor : parts_.options.interceptors) {
    link = interceptor->wrapLoopback(std::move(link), parts_.timer);
  }
  return link;
}

// What sends the responses is not bound to this agent: a handler may complete its future, and so answer, when the agent
// is gone.
void AgentStart::startServer() {
  parts_.server = std::make_shared<Server>(
      parts_.dispatcher,
      [&parts = parts_](uint32_t messageType, Task&& task) {
        return parts.runRequest(poolOf(parts.pools, messageType), std::move(task));
      },
      parts_.disposer,
      [links = parts_.node.links(), transfers = parts_.transfers](
          WorkerId caller, OutgoingFrame frame) {
        links->sendIfConnected(caller, std::move(frame), [transfers, caller](const Error& error) {
          if (error) {
            transfers->peerLost(caller); // no tickets in the response will be heard of
            log(LogLevel::info, "a response was not sent: " + error.message());
          }
        });
      },
      parts_.devices, parts_.transfers, parts_.pools.copies, parts_.metrics,
      parts_.options.inheritDeadline);
  parts_.server->dropRequestsIf(
      [links = parts_.node.links()](WorkerId caller, uint64_t incarnation) {
        return links->isFormer(caller, incarnation);
      });
}

void AgentStart::enter(const std::string& address) {
  parts_.address = address;
  log(LogLevel::info,
      "worker '" + parts_.self.name_ + "' listens at " + parts_.address + " (" +
          parts_.chosen.reason + ")");
  const Roster roster = parts_.membership->join(parts_.address, parts_.context->hostAddress());
  parts_.devices->add(roster.workers);
  for (const WorkerRecord& worker : roster.workers) {
    parts_.directory.add(worker);
  }
  parts_.node.begin(roster);
  prepareToEncrypt(roster);
  checkDevices();
}

/// Loading the ciphers takes a millisecond, for which the first call would wait. A group that encrypts nothing does not
/// load them.
void AgentStart::prepareToEncrypt(const Roster& roster) {
  const std::string& here = parts_.membership->self().onHost.host;
  const bool encrypts =
      parts_.options.encryption != Encryption::off &&
      std::any_of(roster.workers.begin(), roster.workers.end(), [&](const WorkerRecord& worker) {
        return parts_.options.encryption == Encryption::on || worker.onHost.host != here;
      });
  if (encrypts) {
    parts_.loop->post([] { loadRecordCiphers(); });
  }
}

// All workers of a static group find the same, and those of a dynamic one were fine before this one came.
void AgentStart::checkDevices() {
  if (const auto objection = parts_.devices->objection(parts_.isStaticGroup())) {
    if (parts_.isOpen()) {
      parts_.membership->leave();
    }
    throw std::invalid_argument(*objection);
  }
}

} // namespace torchwire
