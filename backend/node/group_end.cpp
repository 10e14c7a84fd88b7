#include "backend/node/group_end.h"

#include <exception>
#include <optional>
#include <utility>

#include "backend/base/log.h"
#include "backend/link/link_errors.h"
#include "backend/membership/clock.h"

namespace torchwire {

int64_t GroupEnd::meet(Milliseconds timeout, const std::function<int64_t()>& number) {
  const ShutdownMonitor monitor(*worker_.node.links(), worker_.membership.self().id, timeout);
  worker_.node.deaths().expectPart();
  int64_t sum = 0;
  worker_.membership.shutDownTogether([&] {
    sum = worker_.membership
              .sum(
                  "reach" + std::to_string(rounds_++), {number(), 0}, [&] { checkOthers(monitor); },
                  [&] { return deadPeers(); })
              .started;
  });
  return sum;
}

void GroupEnd::awaitEndOfCalls(Milliseconds timeout) {
  const ShutdownMonitor monitor(*worker_.node.links(), worker_.membership.self().id, timeout);
  worker_.membership.shutDownTogether([&] { awaitEndOfCalls(monitor); });
}

void GroupEnd::join(Milliseconds timeout, bool hosts) {
  worker_.membership.shutDownTogether([&] {
    joining_ = true;
    const ShutdownMonitor monitor(*worker_.node.links(), worker_.membership.self().id, timeout);
    const Totals last = awaitEndOfCalls(monitor);
    warnOfLosses(last.missing);
    if (hosts) {
      worker_.membership.waitForOthersToFinish(last, [&] { return deadPeers(); });
    }
  });
}

void GroupEnd::leave(Milliseconds timeout) {
  const ShutdownMonitor monitor(*worker_.node.links(), worker_.membership.self().id, timeout);
  awaitOwnCalls([&] {
    worker_.node.deaths().expectPart();
    monitor.checkTime();
  });
  worker_.node.deaths().expectPart();
  try {
    worker_.membership.leave();
  } catch (const std::exception& e) { // its host has left before; the peers are told all the same
    log(LogLevel::warning, e.what());
  }
}

// No worker may go while another's call could still reach it. Each worker reports how many calls it has
// ever started and finished. If as many were started, all told, by a later round as were finished by an
// earlier one, then none was active in between, and none can start any more (Mattern, "Algorithms for
// Distributed Termination Detection", 1987, section 4). Nobody has to stop calling meanwhile.
Totals GroupEnd::awaitEndOfCalls(const ShutdownMonitor& monitor) {
  std::optional<Totals> before;
  for (;;) {
    awaitOwnCalls([&] { checkOthers(monitor); });
    worker_.node.deaths().expectPart();
    const ActiveCalls::Count count = worker_.calls.count();
    const Totals totals = worker_.membership.sum(
        "join" + std::to_string(rounds_++), {count.started, count.finished},
        [&] { checkOthers(monitor); }, [&] { return deadPeers(); });
    // Sums can be compared only if they are those of the same workers.
    if (before && totals.started == before->finished && totals.isOfSameWorkersAs(*before)) {
      return *before;
    }
    before = totals;
  }
}

void GroupEnd::awaitOwnCalls(const std::function<void()>& check) const {
  while (!worker_.calls.waitForNone(kInterruptionInterval)) {
    worker_.checkInterruption();
    check();
  }
}

/// While this worker waits for others.
void GroupEnd::checkOthers(const ShutdownMonitor& monitor) const {
  worker_.node.deaths().expectPart();
  if (worker_.node.isClosed()) {
    throw Membership::BrokenOff(
        shutDownError().message(),
        leftError(worker_.membership.self(), worker_.node.links()->ownGoodbye().reason).message());
  }
  monitor.check(worker_.node.storeIsGone());
  SystemClock clock(worker_.checkInterruption);
  worker_.node.stores().expectAnswers(clock, worker_.node.storeTimeout());
}

/// Those that the shutdown does without. Once the store is gone, a worker that has left may have done so in order: with
/// the store's last answer, which the others did not get.
std::set<WorkerId> GroupEnd::deadPeers() const {
  std::set<WorkerId> dead;
  for (const PeerStatus& peer : worker_.node.links()->status()) {
    if (peer.state == PeerState::dead ||
        (peer.state == PeerState::left && worker_.node.storeIsGone())) {
      dead.insert(peer.record.id);
    }
  }
  return dead;
}

void GroupEnd::warnOfLosses(const std::set<WorkerId>& missing) const {
  std::set<WorkerId> dead = missing;
  for (const PeerStatus& peer : worker_.node.links()->status()) {
    if (peer.state == PeerState::left) {
      dead.erase(peer.record.id);
    }
  }
  std::string losses;
  if (worker_.node.storeIsGone()) {
    losses = "without its rendezvous store, which is gone (" + worker_.node.stores().reason() +
        "), by links";
  }
  if (!dead.empty()) {
    losses += losses.empty() ? "" : ", and ";
    losses += "without those that have died: " + describe(dead);
  }
  if (!losses.empty()) {
    log(LogLevel::warning, "the RPC group shuts down " + losses);
  }
}

std::string GroupEnd::describe(const std::set<WorkerId>& workers) const {
  std::string names;
  for (const WorkerId id : workers) {
    names += (names.empty() ? "" : ", ") + worker_.node.describe(id);
  }
  return names;
}

} // namespace torchwire
