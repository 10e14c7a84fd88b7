// Agent: how it starts: the group, the links, the server.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "autograd/context_lifetime.h"
#include "backend/agent/agent.h"
#include "backend/agent/call_end.h"
#include "backend/agent/failed_start.h"
#include "backend/agent/observer_answers.h"
#include "backend/agent/torch_store.h"
#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/base/random.h"
#include "backend/link/loopback_link.h"
#include "backend/membership/bounded_store.h"
#include "backend/serve/signals.h"
#include "backend/tensorpipe/observers.h"
#include "backend/transport/loop.h"
#include "backend/wire/record_cipher.h"
#include "rref/context_lifetime.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

// A session goes on over another connection sooner than TCP finds its way again: that asks ever more rarely.
constexpr milliseconds kLossTimeout{1800};
// Workers of a group start minutes apart on a busy cluster, whatever their time-out for calls is.
constexpr milliseconds kMinWaitForGroup{60000};

} // namespace

void Agent::startImpl() {
  caller_.expectOwnProcess();
  const StartInterruption::Scope starting(*start_);
  openMembership();
  try {
    joinGroup();
  } catch (const Interrupted&) {
    membership_->giveUpStart(membership_->self().describe() + " was interrupted in init_rpc");
    throw;
  } catch (const std::exception& e) {
    membership_->giveUpStart(describeFailedStart(membership_->self(), e.what()));
    throw;
  }
}

void Agent::joinGroup() {
  const auto self = isCurrentRpcAgentSet() ? getCurrentRpcAgent() : nullptr;
  const bool another = self.get() == this && beginRRefs(self); // it is not in tests without Python
  if (another) {
    endContexts();
  }
  contexts_.forgetEarlierGroup();
  if (isOpen() || another) {
    beginIdsElsewhere();
  }
  startThreads();
  openLinks(membership_->agree(options_.secrets));
  enter(node_.links()->listen());
  if (!isStaticGroup() || membership_->cameLater()) {
    node_.introduce(checkSignals);
  }
}

// Where there can be no more of them, that shows here and not in a callback; and what a process that comes to its limit
// later has suffices to serve.
void Agent::startThreads() {
  timer_.after(milliseconds(0), [] {});
  freshState(); // so that a child that is forked later has it, too
  pools_.start();
}

// libtorch counts them from 0 in each process. One that comes in place of another, or as another worker than before, would
// give the ids again that are still in use elsewhere.
void Agent::beginIdsElsewhere() {
  rrefs_->beginIdsAt(randomNumber());
  contexts_.beginIdsAt(randomNumber());
}

void Agent::openMembership() {
  WorkerRecord self = ownRecord(workerInfo_.name_, self_);
  self.devices = devices_->encodedSelf();
  for (const auto& interceptor : options_.interceptors) {
    self.linkOptions |= interceptor->linkOption();
  }
  if (isStaticGroup() && options_.elastic) {
    self.linkOptions |= link_options::kElastic;
  }
  if (options_.encryption == Encryption::off) {
    self.linkOptions |= link_options::kUnencrypted;
  }
  const InterruptionCheck check = [start = start_] { start->check(); };
  membership_ = std::make_unique<Membership>(
      std::make_unique<BoundedStore>(
          std::make_unique<TorchStore>(store_), storeTimeout(), check, options_.storeThread),
      std::move(self), worldSize_, std::max(getRpcTimeout(), kMinWaitForGroup),
      std::make_unique<SystemClock>(check), [this](const WorkerRecord& worker, bool asksHost) {
        return hasEnded(worker, address_, asksHost);
      });
}

// Peers are let in by the new keys before anything is said under them.
void Agent::changeSecrets(const std::vector<std::string>& secrets) {
  caller_.expectOwnProcess();
  if (options_.secrets.empty() || secrets.empty() || !keys_) {
    throw std::runtime_error(
        "this worker cannot change the group's secret: it has not started, or has none of its own");
  }
  const std::vector<GroupKey> keys = membership_->keysOf(secrets);
  keys_->replace(keys);
  membership_->changeKeys(keys);
}

std::vector<std::string> Agent::secretLabels() const {
  std::vector<std::string> labels;
  for (const GroupKey& key : keys_ ? keys_->all() : std::vector<GroupKey>()) {
    labels.push_back(key.label());
  }
  return labels;
}

TensorPipeOptions Agent::linkSettings() {
  chosen_ = chooseAddress(options_.bindAddress, hostOfStore(store_));
  TensorPipeOptions options;
  options.workerName = workerInfo_.name_;
  options.bindAddress = chosen_.address;
  if (!options_.advertiseAddress.empty()) {
    options.advertiseAddress = resolve(options_.advertiseAddress);
  }
  if (options.advertiseAddress.empty() && isWildcard(chosen_.address)) {
    options.advertiseAddress = chooseAddress("", hostOfStore(store_)).address;
  }
  options.transports = options_.transports;
  options.channels = options_.channels;
  options.keys = keys_;
  options.encryption = options_.encryption;
  options.keepAlive = options_.keepAlive;
  if (options_.sessionTimeout.count() != 0) {
    options.lossTimeout = kLossTimeout;
  }
  options.loop = loop_;
  for (const auto& interceptor : options_.interceptors) {
    if (auto ofChannels = std::dynamic_pointer_cast<ChannelInterceptor>(interceptor)) {
      options.interceptors.push_back(std::move(ofChannels));
    }
  }
  return options;
}

void Agent::openLinks(const std::vector<GroupKey>& keys) {
  keys_ = std::make_shared<KeyRing>(keys);
  loop_ = Loop::start("torchwire_io");
  processes_ = std::make_unique<ProcessWatch>(loop_);
  pools_.evaluations.driveWhenIdle(loop_, [engine = engine_] { return engine->hasPasses(); });
  buffers_ = std::make_shared<BufferPool>(options_.receiveCache, timer_);
  context_ = makeTensorPipeContext(linkSettings(), buffers_, timer_);
  LinkContext& innermost = *context_;
  for (const auto& interceptor : options_.interceptors) {
    context_ = interceptor->wrap(std::move(context_), timer_);
  }
  node_.open(*context_, *processes_, *membership_);
  end_ =
      std::make_unique<GroupEnd>(GroupEnd::Worker{node_, *membership_, activeCalls_, checkSignals});
  startServer();
  // Not before there are links and a server: answers tell of them.
  admitObservers(innermost, answersForObservers(pools_.copies, options_.answer));
  node_.links()->addLoopback(membership_->self(), loopback());
}

std::shared_ptr<Link> Agent::loopback() {
  std::shared_ptr<Link> link = std::make_shared<LoopbackLink>();
  for (const auto& interceptor : options_.interceptors) {
    link = interceptor->wrapLoopback(std::move(link), timer_);
  }
  return link;
}

// What sends the responses is not bound to this agent: a handler may complete its future, and so answer, when the agent
// is gone.
void Agent::startServer() {
  server_ = std::make_shared<Server>(
      dispatcher_,
      [this](uint32_t messageType, Task&& task) {
        return runRequest(poolOf(messageType), std::move(task));
      },
      disposer_,
      [links = node_.links(), transfers = transfers_](WorkerId caller, OutgoingFrame frame) {
        links->sendIfConnected(caller, std::move(frame), [transfers, caller](const Error& error) {
          if (error) {
            transfers->peerLost(caller); // no tickets in the response will be heard of
            log(LogLevel::info, "a response was not sent: " + error.message());
          }
        });
      },
      devices_, transfers_, pools_.copies, metrics_, options_.inheritDeadline);
  server_->dropRequestsIf([links = node_.links()](WorkerId caller, uint64_t incarnation) {
    return links->isFormer(caller, incarnation);
  });
}

void Agent::enter(const std::string& address) {
  address_ = address;
  log(LogLevel::info,
      "worker '" + workerInfo_.name_ + "' listens at " + address_ + " (" + chosen_.reason + ")");
  const Roster roster = membership_->join(address_, context_->hostAddress());
  devices_->add(roster.workers);
  for (const WorkerRecord& worker : roster.workers) {
    directory_.add(worker);
  }
  node_.begin(roster);
  prepareToEncrypt(roster);
  checkDevices();
}

/// Loading the ciphers takes a millisecond, for which the first call would wait. A group that encrypts nothing does not
/// load them.
void Agent::prepareToEncrypt(const Roster& roster) {
  const std::string& here = membership_->self().onHost.host;
  const bool encrypts =
      options_.encryption != Encryption::off &&
      std::any_of(roster.workers.begin(), roster.workers.end(), [&](const WorkerRecord& worker) {
        return options_.encryption == Encryption::on || worker.onHost.host != here;
      });
  if (encrypts) {
    loop_->post([] { loadRecordCiphers(); });
  }
}

// All workers of a static group find the same, and those of a dynamic one were fine before this one came.
void Agent::checkDevices() {
  if (const auto objection = devices_->objection(isStaticGroup())) {
    if (isOpen()) {
      membership_->leave();
    }
    throw std::invalid_argument(*objection);
  }
}

} // namespace torchwire
