#include "backend/agent/agent_parts.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend/agent/forked_agent.h"
#include "backend/base/process_identity.h"
#include "backend/base/random.h"
#include "backend/transport/loop.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMinStoreTimeout{2000};
constexpr milliseconds kMaxStoreTimeout{60000}; // where calls have no time-out

/// A process that comes in place of another one may get what that one's calls are answered with. It must not take it for
/// answers to its own.
uint64_t firstCallId(bool mayReplace) {
  return mayReplace ? randomNumber() >> 2 : 1;
}

cuda::DeviceRecord named(cuda::DeviceRecord record, const std::string& worker) {
  record.name = worker;
  record.host = ProcessIdentity::ofThisProcess().boot; // containers of one have the same
  return record;
}

Node::Settings nodeSettings(const AgentParts& parts) {
  Node::Settings settings;
  settings.id = parts.self.id_;
  settings.name = parts.self.name_;
  settings.isStatic = parts.isStaticGroup();
  settings.isOpen = parts.isOpen();
  settings.firstCallId = firstCallId(parts.isOpen());
  settings.maxBytesInFlight = parts.options.maxBytesInFlight;
  settings.limits.sessionTimeout = parts.options.sessionTimeout;
  settings.limits.sessionBytes = parts.options.maxUnacknowledgedBytes;
  return settings;
}

Node::Parts nodeParts(AgentParts& parts, Node::Program& program) {
  return {
      program, parts.timer, parts.metrics->trace,
      [&parts](Task&& task) { return parts.pools.control->run(std::move(task)); },
      [&parts](Task&& task) { return parts.pools.deaths.run(std::move(task)); }};
}

std::string whyOnlyFrames(const AgentOptions& options) {
  return options.interceptors.empty()
      ? ""
      : "checksums or fault injection are on, which see what is in frames";
}

} // namespace

AgentParts::AgentParts(
    Inherited inherited, c10::intrusive_ptr<c10d::Store> groupStore,
    std::optional<int> groupWorldSize, AgentOptions agentOptions, Node::Program& program)
    : agent(inherited.agent),
      self(inherited.self),
      isRunning(inherited.isRunning),
      dispatcher(inherited.dispatcher),
      store(std::move(groupStore)),
      worldSize(static_cast<uint32_t>(groupWorldSize.value_or(0))),
      options(std::move(agentOptions)),
      pools(options.numWorkerThreads, options.numSpareThreads),
      disposer(pools.control),
      rrefs(std::make_shared<RRefService>(dispatcher, metrics)),
      directory(self),
      devices(std::make_shared<cuda::GroupDevices>(named(options.devices, self.name_))),
      transfers(
          std::make_shared<cuda::Transfers>(
              self.id_, devices, pools.copies, whyOnlyFrames(options), options.devicePathsLeftOut)),
      node(nodeSettings(*this), nodeParts(*this, program)),
      engine(
          std::make_shared<TorchEngine>(
              agent, pools.evaluations, timer, options.backwardMode == BackwardMode::smart,
              metrics)),
      contexts(agent, engine) {}

/// Three such waits are no longer than a call: for the rendezvous store, and twice for a worker that hosts that and stands
/// still. On a busy machine it may be longer than short calls are to take.
milliseconds AgentParts::storeTimeout() const {
  const milliseconds timeout = rpcTimeout();
  return timeout.count() == 0 ? kMaxStoreTimeout : std::max(timeout / 3, kMinStoreTimeout);
}

/// For those who have kept the agent, or the future of a call of its; others find a ForkedAgent in its place.
void AgentParts::expectOwnProcess() const {
  if (isInherited()) {
    throw std::runtime_error(ForkedAgent(self).refusal());
  }
}

// Not what evaluates: libtorch marks the thread, and functions of the user's must not run on it afterwards
// (docs/gotchas.md).
bool AgentParts::runRequest(ThreadPool& pool, Task&& task) {
  return loop->isLoopThread() && &pool != &pools.evaluations ? loop->runAside(std::move(task), pool)
                                                             : pool.run(std::move(task));
}

} // namespace torchwire
