// Agent: leaving the group, and the end of all threads.
#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/agent/agent.h"
#include "backend/agent/forked_agent.h"
#include "backend/agent/seconds.h"
#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/serve/signals.h"
#include "backend/transport/loop.h"
#include "backend/transport/processes.h"
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

void Agent::waitAllWorkers(float timeout) {
  if (!end_ || !isStaticGroup() || isInherited()) {
    return;
  }
  hasDoubtfulForks_ = end_->meet(fromSeconds(timeout), [this] {
    return static_cast<int64_t>(countDoubtfulForks(*rrefs_));
  }) != 0;
}

void Agent::interruptShutdown() {
  if (membership_ && isStaticGroup() && !isInherited()) {
    membership_->interruptShutdown();
  }
}

void Agent::join(bool shutdown, float timeout) {
  if (!end_ || isInherited()) {
    return; // never started, or in the parent
  }
  if (isStaticGroup()) {
    end_->join(fromSeconds(timeout), /* hosts */ shutdown);
  } else {
    end_->leave(fromSeconds(timeout));
    node_.links()->leave(kGoodbyePatience, isInterrupted);
  }
}

// libtorch waits for what a message would still say of a fork, after the workers have met and before GroupEnd::join(): in vain
// for one that is lost. When no call is under way any more, neither is such a message, so that what is left can be told
// from what is lost.
void Agent::settleRRefs(float timeout, milliseconds patience) {
  if (isInherited()) {
    return;
  }
  if (!isStaticGroup()) {
    if (rrefs_->ledger().hasGone()) {
      dropUnheldForks(*rrefs_, patience);
    }
  } else if (hasDoubtfulForks_) { // here or elsewhere: all have the same sum
    end_->awaitEndOfCalls(fromSeconds(timeout));
    letGoUnconfirmedUsers();
    dropUnheldForks(*rrefs_, patience);
  }
}

void Agent::explainLeave(Goodbye goodbye) {
  if (node_.links()) {
    node_.links()->explainLeave(std::move(goodbye));
  }
}

std::vector<int32_t> Agent::endingProcesses() const {
  std::vector<int32_t> processes;
  for (const PeerStatus& peer : peers()) {
    if (node_.links()->goodbyeOf(peer.record.id).processEnds &&
        presenceOf(peer.record.process) == Presence::lives) {
      processes.push_back(peer.record.process.pid);
    }
  }
  return processes;
}

void Agent::shutdownImpl() {
  if (!node_.close()) {
    return;
  }
  const Error error(
      ErrorCode::shutDown,
      "worker '" + workerInfo_.name_ + "' shut its RPC agent down before the call was answered");
  engine_->shutDown(node_.links() ? node_.links()->ownGoodbye().reason : "");
  node_.calls().failAll(error); // before the links go, whose loss would be a worse explanation
  if (node_.links()) {
    node_.links()->leave(kGoodbyePatience, isInterrupted);
  }
  timer_.stop();
  if (processes_) {
    processes_->stop();
  }
  if (context_) {
    context_->join(); // from here on no event comes
  }
  node_.calls().failAll(error); // before handlers are waited for, which may wait for one
  transfers_->close();
  if (server_) {
    const auto neverCalled = server_->shutDown();
  }
  if (awaitPools()) {
    caller_.waitForWaiters();
    if (buffers_) {
      buffers_->close();
    }
  }
  ForkedAgent::endForChildren();
  flushLog(); // what follows may end the process without it
}

/// A function that another worker has called may never return. Returns false, and leaves its thread running, and the agent
/// with it, once a handler of a signal has raised something on the main thread, or where this process ends.
bool Agent::awaitPools() {
  const auto self = weak_from_this().lock(); // null while the agent is being destroyed
  if (!self || ThreadPool::isRunningTask()) { // a thread of the pools does not wait for itself
    joinPools();
    return true;
  }
  const auto joined = std::make_shared<std::promise<void>>();
  const std::future<void> end = joined->get_future();
  std::thread joining;
  try {
    joining = std::thread([self, joined] {
      pthread_setname_np(pthread_self(), "torchwire_join");
      self->joinPools();
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
        (hasWarned && node_.links() && node_.links()->ownGoodbye().processEnds)) {
      pools_.joinOwn(); // what they do ends, and touches RRefs
      return false;
    }
  }
  left.release();
  joining.join();
  return true;
}

void Agent::warnOfRunning() const {
  std::string running;
  for (const ServedCalls::Status& request : server_ ? server_->served().all() : Requests()) {
    if (request.state == ServedCalls::State::running) {
      const auto* const function = request.request.function;
      running += (running.empty() ? ": " : ", ") +
          (function != nullptr ? function->describe() : std::string("a function")) + " for " +
          directory_.describe(request.request.caller);
    }
  }
  log(LogLevel::warning, "rpc.shutdown() waits for functions that run here" + running);
}

void Agent::joinPools() {
  if (loop_) {
    loop_->stopAside();
  }
  pools_.join();
}

} // namespace torchwire
