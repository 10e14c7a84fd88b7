// Agent: leaving the group, and the end of all threads.
#include <c10/util/ScopeExit.h>
#include <pthread.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/agent/agent.h"
#include "backend/agent/forked_agent.h"
#include "backend/agent/seconds.h"
#include "backend/base/interruption.h"
#include "backend/base/log.h"
#include "backend/link/shutdown_monitor.h"
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
  if (!membership_ || !isStaticGroup() || isInherited()) {
    return;
  }
  const ShutdownMonitor monitor(*links_, self_, fromSeconds(timeout));
  peerDeaths_->expectPart();
  membership_->shutDownTogether([&] {
    const Totals met = membership_->sum(
        "reach" + std::to_string(rounds_++), {static_cast<int64_t>(countDoubtfulForks(*rrefs_)), 0},
        [&] { checkOthers(monitor); }, [&] { return deadPeers(); });
    hasDoubtfulForks_ = met.started != 0;
  });
}

void Agent::interruptShutdown() {
  if (membership_ && isStaticGroup() && !isInherited()) {
    membership_->interruptShutdown();
  }
}

/// Those that the shutdown does without. Once the store is gone, a worker that has left may have done so in order: with
/// the store's last answer, which the others did not get.
std::set<WorkerId> Agent::deadPeers() const {
  std::set<WorkerId> dead;
  for (const PeerStatus& peer : links_->status()) {
    if (peer.state == PeerState::dead || (peer.state == PeerState::left && storeIsGone())) {
      dead.insert(peer.record.id);
    }
  }
  return dead;
}

std::string Agent::describe(const std::set<WorkerId>& workers) const {
  std::string names;
  for (const WorkerId id : workers) {
    names += (names.empty() ? "" : ", ") + directory_.describe(id);
  }
  return names;
}

void Agent::join(bool shutdown, float timeout) {
  if (!links_ || !membership_ || isInherited()) {
    return; // never started, or in the parent
  }
  if (isStaticGroup()) {
    membership_->shutDownTogether([&] { joinStatic(fromSeconds(timeout), shutdown); });
  } else {
    const ShutdownMonitor monitor(*links_, self_, fromSeconds(timeout));
    awaitOwnCalls([&] {
      peerDeaths_->expectPart();
      monitor.checkTime();
    });
    peerDeaths_->expectPart();
    try {
      membership_->leave();
    } catch (const std::exception& e) { // its host has left before; the peers are told all the same
      log(LogLevel::warning, e.what());
    }
    links_->leave(kGoodbyePatience, isInterrupted);
  }
}

// No worker may go while another's call could still reach it. Each worker reports how many calls it has
// ever started and finished. If as many were started, all told, by a later round as were finished by an
// earlier one, then none was active in between, and none can start any more (Mattern, "Algorithms for
// Distributed Termination Detection", 1987, section 4). Nobody has to stop calling meanwhile.
void Agent::joinStatic(milliseconds timeout, bool shutdown) {
  joinsOthers_ = true;
  const ShutdownMonitor monitor(*links_, self_, timeout);
  const Totals last = awaitEndOfCalls(monitor);
  warnOfLosses(last.missing);
  if (shutdown) {
    membership_->waitForOthersToFinish(last, [&] { return deadPeers(); });
  }
}

Totals Agent::awaitEndOfCalls(const ShutdownMonitor& monitor) {
  std::optional<Totals> before;
  for (;;) {
    awaitOwnCalls([&] { checkOthers(monitor); });
    peerDeaths_->expectPart();
    const ActiveCalls::Count count = activeCalls_.count();
    const Totals totals = membership_->sum(
        "join" + std::to_string(rounds_++), {count.started, count.finished},
        [&] { checkOthers(monitor); }, [&] { return deadPeers(); });
    // Sums can be compared only if they are those of the same workers.
    if (before && totals.started == before->finished && totals.isOfSameWorkersAs(*before)) {
      return *before;
    }
    before = totals;
  }
}

// libtorch waits for what a message would still say of a fork, after the workers have met and before joinStatic(): in vain
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
    const ShutdownMonitor monitor(*links_, self_, fromSeconds(timeout));
    membership_->shutDownTogether([&] { awaitEndOfCalls(monitor); });
    letGoUnconfirmedUsers();
    dropUnheldForks(*rrefs_, patience);
  }
}

void Agent::warnOfLosses(const std::set<WorkerId>& missing) const {
  std::set<WorkerId> dead = missing;
  for (const PeerStatus& peer : links_->status()) {
    if (peer.state == PeerState::left) {
      dead.erase(peer.record.id);
    }
  }
  std::string losses;
  if (storeIsGone()) {
    losses =
        "without its rendezvous store, which is gone (" + peerStores_->reason() + "), by links";
  }
  if (!dead.empty()) {
    losses += losses.empty() ? "" : ", and ";
    losses += "without those that have died: " + describe(dead);
  }
  if (!losses.empty()) {
    log(LogLevel::warning, "the RPC group shuts down " + losses);
  }
}

void Agent::awaitOwnCalls(const std::function<void()>& check) {
  while (!activeCalls_.waitForNone(kInterruptionInterval)) {
    checkSignals();
    check();
  }
}

void Agent::explainLeave(Goodbye goodbye) {
  if (links_) {
    links_->explainLeave(std::move(goodbye));
  }
}

std::vector<int32_t> Agent::endingProcesses() const {
  std::vector<int32_t> processes;
  for (const PeerStatus& peer : peers()) {
    if (links_->goodbyeOf(peer.record.id).processEnds &&
        presenceOf(peer.record.process) == Presence::lives) {
      processes.push_back(peer.record.process.pid);
    }
  }
  return processes;
}

void Agent::shutdownImpl() {
  if (closed_.exchange(true)) {
    return;
  }
  const Error error(
      ErrorCode::shutDown,
      "worker '" + workerInfo_.name_ + "' shut its RPC agent down before the call was answered");
  engine_->shutDown(links_ ? links_->ownGoodbye().reason : "");
  calls_->failAll(error); // before the links go, whose loss would be a worse explanation
  if (links_) {
    links_->leave(kGoodbyePatience, isInterrupted);
  }
  timer_.stop();
  if (processes_) {
    processes_->stop();
  }
  if (context_) {
    context_->join(); // from here on no event comes
  }
  calls_->failAll(error); // before handlers are waited for, which may wait for one
  transfers_->close();
  if (server_) {
    const auto neverCalled = server_->shutDown();
  }
  if (awaitPools()) {
    waitForWaiters();
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
    if (isInterrupted() || (hasWarned && links_ && links_->ownGoodbye().processEnds)) {
      deaths_.join(); // what these do ends, and touches RRefs
      copies_->join();
      control_->join();
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
  requests_.join();
  deaths_.join();
  copies_->join();
  control_->join();
  evaluations_.join();
  completions_.join();
}

} // namespace torchwire
