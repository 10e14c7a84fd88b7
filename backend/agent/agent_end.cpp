#include "backend/agent/agent_end.h"

#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/agent/forked_agent.h"
#include "backend/agent/seconds.h"
#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/serve/signals.h"
#include "backend/transport/loop.h"
#include "rref/unheld_forks.h"

namespace torchwire {
namespace {

using std::chrono::milliseconds;

// How long a leaving worker waits for its peers to take note.
constexpr milliseconds kGoodbyePatience{2000};
// How long it waits without a word for functions that run.
constexpr milliseconds kWarnAfter{5000};
using Requests = std::vector<ServedCalls::Status>;

/// What a handler has raised is raised when the agent has been shut down.
bool isInterrupted() {
  try {
    checkSignals();
    return false;
  } catch (const Interrupted&) {
    return true;
  }
}

} // namespace

void AgentEnd::waitAllWorkers(float timeout) {
  if (!parts_.groupEnd || !parts_.isStaticGroup() || parts_.isInherited()) {
    return;
  }
  hasDoubtfulForks_ = parts_.groupEnd->meet(fromSeconds(timeout), [this] {
    return static_cast<int64_t>(countDoubtfulForks(*parts_.rrefs));
  }) != 0;
}

void AgentEnd::interruptShutdown() {
  if (parts_.membership && parts_.isStaticGroup() && !parts_.isInherited()) {
    parts_.membership->interruptShutdown();
  }
}

void AgentEnd::join(bool shutdown, float timeout) {
  if (!parts_.groupEnd || parts_.isInherited()) {
    return; // never started, or in the parent
  }
  if (parts_.isStaticGroup()) {
    parts_.groupEnd->join(fromSeconds(timeout), /* hosts */ shutdown);
  } else {
    parts_.groupEnd->leave(fromSeconds(timeout));
    parts_.node.links()->leave(kGoodbyePatience, isInterrupted);
  }
}

// libtorch waits for what a message would still say of a fork, after the workers have met and before GroupEnd::join(): in vain
// for one that is lost. When no call is under way any more, neither is such a message, so that what is left can be told
// from what is lost.
void AgentEnd::settleRRefs(float timeout, milliseconds patience) {
  if (parts_.isInherited()) {
    return;
  }
  if (!parts_.isStaticGroup()) {
    if (parts_.rrefs->ledger().hasGone()) {
      dropUnheldForks(*parts_.rrefs, patience);
    }
  } else if (hasDoubtfulForks_) { // here or elsewhere: all have the same sum
    parts_.groupEnd->awaitEndOfCalls(fromSeconds(timeout));
    letGoUnconfirmedUsers();
    dropUnheldForks(*parts_.rrefs, patience);
  }
}

void AgentEnd::explainLeave(Goodbye goodbye) {
  if (parts_.node.links()) {
    parts_.node.links()->explainLeave(std::move(goodbye));
  }
}

void AgentEnd::shutDown(const std::shared_ptr<void>& agent) {
  if (!parts_.node.close()) {
    return;
  }
  const Error error(
      ErrorCode::shutDown,
      "worker '" + parts_.self.name_ + "' shut its RPC agent down before the call was answered");
  parts_.engine->shutDown(parts_.node.links() ? parts_.node.links()->ownGoodbye().reason : "");
  parts_.node.calls().failAll(
      error); // before the links go, whose loss would be a worse explanation
  if (parts_.node.links()) {
    parts_.node.links()->leave(kGoodbyePatience, isInterrupted);
  }
  parts_.timer.stop();
  if (parts_.processes) {
    parts_.processes->stop();
  }
  if (parts_.context) {
    parts_.context->join(); // from here on no event comes
  }
  parts_.node.calls().failAll(error); // before handlers are waited for, which may wait for one
  parts_.transfers->close();
  if (parts_.server) {
    const auto neverCalled = parts_.server->shutDown();
  }
  if (awaitPools(agent)) {
    caller_.waitForWaiters();
    if (parts_.buffers) {
      parts_.buffers->close();
    }
  }
  ForkedAgent::endForChildren();
  flushLog(); // what follows may end the process without it
}

/// A function that another worker has called may never return. Returns false, and leaves its thread running, and the agent
/// with it, once a handler of a signal has raised something on the main thread, or where this process ends.
bool AgentEnd::awaitPools(const std::shared_ptr<void>& agent) {
  if (!agent || ThreadPool::isRunningTask()) { // a thread of the pools does not wait for itself
    joinPools();
    return true;
  }
  const auto joined = std::make_shared<std::promise<void>>();
  const std::future<void> end = joined->get_future();
  std::thread joining;
  try {
    joining = std::thread([this, agent, joined] {
      pthread_setname_np(pthread_self(), "torchwire_join");
      joinPools();
      joined->set_value();
    });
  } catch (const std::system_error&) { // there can be no more threads
    joinPools();
    return true;
  }
  auto left =
      c10::make_scope_exit([&] { joining.detach(); }); // also in a child that is forked meanwhile
  const auto begun = std::chrono::steady_clock::now();
  bool hasWarned = false;
  while (end.wait_for(kInterruptionInterval) == std::future_status::timeout) {
    if (!hasWarned && std::chrono::steady_clock::now() - begun >= kWarnAfter) {
      hasWarned = true;
      warnOfRunning();
    }
    if (isInterrupted() ||
        (hasWarned && parts_.node.links() && parts_.node.links()->ownGoodbye().processEnds)) {
      parts_.pools.joinOwn(); // what they do ends, and touches RRefs
      return false;
    }
  }
  left.release();
  joining.join();
  return true;
}

void AgentEnd::warnOfRunning() const {
  std::string running;
  for (const ServedCalls::Status& request :
       parts_.server ? parts_.server->served().all() : Requests()) {
    if (request.state == ServedCalls::State::running) {
      const auto* const function = request.request.function;
      running += (running.empty() ? ": " : ", ") +
          (function != nullptr ? function->describe() : std::string("a function")) + " for " +
          parts_.directory.describe(request.request.caller);
    }
  }
  log(LogLevel::warning, "rpc.shutdown() waits for functions that run here" + running);
}

void AgentEnd::joinPools() {
  if (parts_.loop) {
    parts_.loop->stopAside();
  }
  parts_.pools.join();
}

} // namespace torchwire
