// Stores that break and workers that die at any operation: nobody waits for ever, and everybody says why.
#include <catch2/catch.hpp>
#include <optional>

#include "backend/membership/membership.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;
constexpr uint32_t kWorkers = 4;
// More than a worker has operations on its way through joinAndShutDown, without the waiting.
constexpr unsigned kOperations = 24;
constexpr unsigned kFewest = 6; // that any worker takes

void joinAndShutDown(SimulatedGroup& group, SimulatedWorker& self) {
  self.start();
  for (const std::string round : {"reach0", "join1"}) {
    self.membership->sum(round, {1, 1}, [&] { group.throwIfOneIsGone(); });
  }
  self.membership->waitForOthersToFinish();
}

// `faulty` unset: the fault is everybody's.
void addAll(
    SimulatedGroup& group, std::optional<WorkerId> faulty, const ScheduledStore::Settings& fault) {
  for (WorkerId id = 0; id < static_cast<WorkerId>(kWorkers); ++id) {
    SimulatedWorker::Settings settings;
    settings.id = id;
    settings.worldSize = kWorkers;
    if (!faulty || id == *faulty) {
      settings.store = fault;
    }
    group.add(settings, [&group](SimulatedWorker& self) { joinAndShutDown(group, self); });
  }
}

std::string sentenceOf(const SimulatedWorker& worker, const std::string& reason) {
  return "worker '" + worker.settings.name + "' \\(rank " + std::to_string(worker.settings.id) +
      "\\) could not (join the RPC group|shut down together with the RPC group|leave the RPC "
      "group): the rendezvous store \\(init_method, MASTER_ADDR and MASTER_PORT\\) did not "
      "answer: " +
      reason;
}

// What those may throw whose own store works.
std::string otherSentences(const SimulatedWorker& worker) {
  return sentenceOf(worker, ".*") + "|cannot reach worker 'w.'|worker '" + worker.settings.name +
      "' \\(rank .\\) waited 60 s for the RPC group of world_size=4 to be complete; "
      "(not there: rank .*|all are there, but the last to come ended before it could say so)|" +
      "worker 'w.' \\(rank .\\) could not shut down together with the RPC group: .*";
}

} // namespace

TEST_CASE("a store that is gone ends joining and shutdown on all workers", "[membership_fault]") {
  for (const unsigned seed : seeds(kOperations * kWorkers)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    ScheduledStore::Settings fault;
    fault.goneAt = seed;
    addAll(group, std::nullopt, fault);
    REQUIRE(group.run() == kNobody);
    CHECK(
        (seed >= kWorkers || !group.workers[0]->error.empty())); // too early for anybody to be done
    for (const auto& worker : group.workers) {
      if (!worker->error.empty()) { // else it had no operation left
        CHECK_THAT(
            worker->error, Catch::Matches(sentenceOf(*worker, "connection refused") + "|cannot.*"));
      }
    }
    CHECK(group.workers[0]->end - Clock::TimePoint() < seconds(10));
  }
}

TEST_CASE("a worker whose store breaks off does not keep the others", "[membership_fault]") {
  for (const unsigned seed : seeds(10 * kOperations)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    ScheduledStore::Settings fault;
    fault.breaksAt = seed % kOperations;
    const auto faulty = static_cast<WorkerId>(seed / kOperations % kWorkers);
    addAll(group, faulty, fault);
    REQUIRE(group.run() == kNobody);
    for (const auto& worker : group.workers) {
      const bool broken = worker->settings.id == faulty;
      CHECK((!broken || fault.breaksAt >= kFewest || !worker->error.empty()));
      if (!worker->error.empty()) {
        CHECK_THAT(
            worker->error,
            Catch::Matches(
                broken ? sentenceOf(*worker, "connection reset by peer") + "|cannot.*"
                       : otherSentences(*worker)));
      }
    }
  }
}

TEST_CASE("a worker that dies does not keep the others", "[membership_fault]") {
  for (const unsigned seed : seeds(10 * kOperations)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    ScheduledStore::Settings fault;
    fault.diesAt = seed % kOperations;
    const auto faulty = static_cast<WorkerId>(seed / kOperations % kWorkers);
    addAll(group, faulty, fault);
    REQUIRE(group.run() == kNobody);
    for (const auto& worker : group.workers) {
      if (!worker->error.empty()) {
        CHECK_THAT(worker->error, Catch::Matches(otherSentences(*worker)));
      }
    }
  }
}

TEST_CASE("a store that breaks off while a worker leaves says so", "[membership_fault]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    SimulatedWorker::Settings settings;
    settings.store.breaksAt = 2; // after the credentials and the roster
    group.add(settings, [](SimulatedWorker& self) {
      self.start();
      self.membership->leave();
    });
    REQUIRE(group.run() == kNobody);
    CHECK(
        group.errors() ==
        std::vector<std::string>{
            "worker 'w0' (rank 0) could not leave the RPC group: the rendezvous store "
            "(init_method, MASTER_ADDR and MASTER_PORT) did not answer: connection reset by peer"});
  }
}

TEST_CASE(
    "a worker with another secret does not wait for one that died before it joined",
    "[membership_fault]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    const auto join = [](SimulatedWorker& self) { self.start(); };
    SimulatedWorker::Settings first;
    first.worldSize = 2;
    first.store.diesAt = 1; // its credentials are there, its place in the roster perhaps
    group.add(first, join);
    SimulatedWorker::Settings second;
    second.id = 1;
    second.worldSize = 2;
    second.secret = "a secret that the first has not, at all";
    second.start = seconds(1);
    group.add(second, join);
    REQUIRE(group.run() == kNobody);
    CHECK(group.workers[0]->died);
    CHECK_THAT(
        group.workers[1]->error,
        Catch::StartsWith("worker 'w1' (rank 1) was started with a group secret, but worker 'w0'"));
    CHECK(group.workers[1]->end - Clock::TimePoint() < seconds(2));
  }
}
