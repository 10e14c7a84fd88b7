// Static groups of which a worker cannot start, or ends before all are there: the others do not wait for it.
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "backend/membership/membership.h"
#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;
const std::string kWhy = "worker 'w2' (rank 2) could not start: it has no memory";

const auto kJoin = [](SimulatedWorker& self) { self.start(); };

// A process that ends before it came so far that it is on the list.
void endEarly(
    SimulatedGroup& group, SimulatedWorker::Settings settings,
    const std::function<void(Membership&)>& last) {
  if (settings.name.empty()) {
    settings.name = "w2";
  }
  group.add(settings, [&group, last](SimulatedWorker& self) {
    WorkerRecord record;
    record.name = self.settings.name;
    record.id = self.settings.id;
    record.incarnation = 1;
    Membership membership(
        std::make_unique<ScheduledStore>(*self.store, *self.scheduler, self.settings.store), record,
        self.settings.worldSize, seconds(60), std::make_unique<ScheduledClock>(group.scheduler),
        self.settings.hasEnded);
    last(membership);
  });
}

void giveUp(SimulatedGroup& group, const SimulatedWorker::Settings& settings) {
  endEarly(group, settings, [](Membership& membership) { membership.giveUpStart(kWhy); });
}

/// Joins as this process, or as one that was started later.
std::function<void(SimulatedWorker&)> joinAsProcess(bool isYounger) {
  return [isYounger](SimulatedWorker& self) {
    WorkerRecord record;
    record.name = self.settings.name;
    record.id = self.settings.id;
    record.incarnation = 10 + static_cast<uint64_t>(record.id);
    record.torchVersion = self.settings.torchVersion;
    record.process = ProcessIdentity::ofThisProcess();
    REQUIRE(record.process.isKnown());
    if (isYounger) {
      record.process.startTime += 1'000'000; // some hours
    }
    Membership membership(
        std::make_unique<ScheduledStore>(*self.store, *self.scheduler, self.settings.store), record,
        self.settings.worldSize, seconds(60), std::make_unique<ScheduledClock>(*self.scheduler),
        self.settings.hasEnded);
    membership.agree({});
    membership.join("tcp://192.168.100.100:1");
  };
}

} // namespace

TEST_CASE("a worker that cannot start ends the start of all", "[membership_start]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (const WorkerId id : {0, 1, 3}) {
      SimulatedWorker::Settings settings = rankOf(4, id);
      settings.start = milliseconds(seed % 3 * 100);
      group.add(settings, kJoin);
    }
    SimulatedWorker::Settings failing = rankOf(4, 2);
    failing.start = milliseconds(100);
    giveUp(group, failing);
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>{kWhy, kWhy, kWhy, ""});
    for (const auto& worker : group.workers) {
      CHECK(worker->end - Clock::TimePoint() < milliseconds(700));
    }
  }
}

TEST_CASE("a worker that gives up after it has come ends the start of all", "[membership_start]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 3; ++id) {
      SimulatedWorker::Settings settings = rankOf(4, id);
      if (id == 2) {
        settings.timeout = milliseconds(100);
      }
      group.add(settings, [](SimulatedWorker& self) {
        try {
          self.start();
        } catch (const std::exception&) {
          self.membership->giveUpStart(kWhy); // AgentStart::run does it on all
          throw;
        }
      });
    }
    REQUIRE(group.run() == kNobody);
    CHECK(group.workers[0]->error == kWhy);
    CHECK(group.workers[1]->error == kWhy);
    // The store is the first worker's, and goes with it.
    CHECK(group.workers[0]->end >= group.workers[1]->end + milliseconds(100));
    CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w0", "w1", "w2"});
  }
}

TEST_CASE("a worker that ends on another host ends the start of all", "[membership_start]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    std::map<WorkerId, int> askedByFirst;
    for (WorkerId id = 0; id < 3; ++id) {
      SimulatedWorker::Settings settings = rankOf(4, id);
      settings.hasEnded = [&, id](const WorkerRecord& worker, bool asksHost) {
        askedByFirst[worker.id] += id == 0 && asksHost ? 1 : 0;
        return asksHost && worker.id == 1 &&
            group.scheduler.now() - Clock::TimePoint() >= seconds(10);
      };
      if (id == 1) {
        settings.timeout = milliseconds(100);
      }
      group.add(settings, kJoin);
    }
    REQUIRE(group.run() == kNobody);
    const std::string why =
        "the RPC group of world_size=4 cannot start: worker 'w1' (rank 1) ended before all workers "
        "were there";
    for (const size_t waiting : {0, 2}) {
      CHECK(group.workers[waiting]->error == why);
      CHECK(group.workers[waiting]->end - Clock::TimePoint() < seconds(14));
    }
    CHECK(askedByFirst[1] >= 3);
    CHECK(askedByFirst[1] <= 7);
    CHECK(askedByFirst[2] <= 1); // before the one between them came
  }
}

TEST_CASE("a worker that cannot start does not end a group that runs", "[membership_start]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.addStatic(3, [&](SimulatedWorker& self) {
      self.start();
      group.scheduler.sleepFor(seconds(2));
      self.membership->sum("join0", {1, 1}, [] {});
    });
    SimulatedWorker::Settings late = rankOf(3, 2);
    late.start = seconds(1);
    giveUp(group, late);
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(4));
    CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w0", "w1", "w2"});
  }
}

TEST_CASE("workers of a dynamic group do not hear of one that cannot start", "[membership_start]") {
  SimulatedGroup group(1);
  giveUp(group, rankOf(0, 2));
  SimulatedWorker::Settings later = rankOf(0, 1);
  later.start = seconds(1);
  group.add(later, kJoin);
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == std::vector<std::string>(2));
  CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w1"});
}

TEST_CASE("processes started anew do not hear of a start that failed", "[membership_start]") {
  const std::string ofSecondStart = "2.12.0";
  for (const unsigned seed : seeds(40)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    const auto hasEnded = [&](const WorkerRecord& worker, bool) {
      return group.scheduler.now() - Clock::TimePoint() >= seconds(5) &&
          worker.torchVersion != ofSecondStart;
    };
    SimulatedWorker::Settings settings = rankOf(2, 1);
    settings.hasEnded = hasEnded;
    settings.start = milliseconds(100 * (seed % 2));
    giveUp(group, settings);
    settings = rankOf(2, 0);
    settings.hasEnded = hasEnded;
    settings.start = milliseconds(50);
    group.add(settings, kJoin);
    settings.torchVersion = ofSecondStart;
    settings.start = seconds(5);
    for (const WorkerId id : {0, 1}) {
      settings.id = id;
      group.add(settings, kJoin);
    }
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>{"", kWhy, "", ""});
  }
}

TEST_CASE("a process that was there before a start failed hears of it late", "[membership_start]") {
  const bool isYounger = GENERATE(false, true);
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    giveUp(group, rankOf(3, 2));
    for (const WorkerId id : {0, 1, 2}) {
      SimulatedWorker::Settings settings = rankOf(3, id);
      settings.start = seconds(5);
      settings.hasEnded = [](const WorkerRecord& worker, bool) { return worker.incarnation == 1; };
      if (id < 2 || isYounger) {
        group.add(settings, joinAsProcess(isYounger));
      }
    }
    REQUIRE(group.run() == kNobody);
    const std::string expected = isYounger ? "" : kWhy;
    CHECK(group.workers[1]->error == expected);
    CHECK(group.workers[2]->error == expected);
  }
}

TEST_CASE("a worker that ends before all are there ends the start of all", "[membership_start]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (const WorkerId id : {0, 1, 2}) {
      SimulatedWorker::Settings settings = rankOf(4, id);
      if (id == 2) {
        settings.store.diesAt = 4 + seed % 4; // it is on the list by then
      }
      settings.hasEnded = [&group](const WorkerRecord& worker, bool) {
        return worker.id == 2 && group.workers[2]->died;
      };
      group.add(settings, kJoin);
    }
    REQUIRE(group.run() == kNobody);
    REQUIRE(group.workers[2]->died);
    const std::string sentence =
        "the RPC group of world_size=4 cannot start: worker 'w2' (rank 2) ended before all workers "
        "were there";
    CHECK(group.errors() == std::vector<std::string>(2, sentence));
    for (const auto& worker : group.workers) {
      CHECK(worker->end - Clock::TimePoint() < seconds(2));
    }
  }
}

TEST_CASE("a worker that ends before it has joined ends the start of all", "[membership_start]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    SimulatedWorker::Settings settings = rankOf(4, 2);
    endEarly(group, settings, [](Membership& membership) { membership.announce(); });
    settings.hasEnded = [](const WorkerRecord& worker, bool) { return worker.incarnation == 1; };
    for (const WorkerId id : {3, 0, 1}) {
      settings.id = id;
      settings.start = milliseconds(100 * (seed % 4) * id);
      group.add(settings, kJoin);
    }
    REQUIRE(group.run() == kNobody);
    const std::string sentence =
        "the RPC group of world_size=4 cannot start: worker 'w2' (rank 2) ended before all workers "
        "were there";
    CHECK(group.errors() == std::vector<std::string>{"", sentence, sentence, sentence});
    for (const auto& worker : group.workers) {
      CHECK(worker->end - Clock::TimePoint() < seconds(2));
    }
  }
}

TEST_CASE("members do not show what a stranger says of an arrival", "[membership_start]") {
  SimulatedGroup group(1);
  SimulatedWorker::Settings settings = rankOf(4, 2);
  settings.name = "\x1b[31mw2";
  endEarly(group, settings, [](Membership& membership) { membership.announce(); });
  settings = rankOf(4, 2);
  settings.timeout = seconds(3);
  settings.hasEnded = [](const WorkerRecord& worker, bool) { return worker.incarnation == 1; };
  for (const WorkerId id : {0, 1, 3}) {
    settings.id = id;
    group.add(settings, kJoin);
  }
  REQUIRE(group.run() == kNobody);
  for (size_t i = 1; i < group.workers.size(); ++i) {
    CHECK_THAT(group.workers[i]->error, Catch::Contains("to be complete; not there: rank 2"));
  }
}

TEST_CASE("who comes when all others have ended hears of it", "[membership_start]") {
  const bool isYounger = GENERATE(false, true);
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    SimulatedWorker::Settings settings = rankOf(3, 2);
    settings.store.diesAt = 5 + seed % 8;
    endEarly(group, settings, [](Membership& membership) {
      membership.announce();
      membership.agree({});
      membership.join("tcp://192.168.100.100:1");
    });
    settings.store.diesAt = SimulatedWorker::Settings().store.diesAt;
    settings.hasEnded = [](const WorkerRecord& worker, bool) { return worker.incarnation == 1; };
    for (const WorkerId id : {0, 1, 2}) {
      settings.id = id;
      settings.start = milliseconds(2000 + 100 * (seed % 4) * id);
      if (id < 2 || isYounger) {
        group.add(settings, joinAsProcess(isYounger));
      }
    }
    REQUIRE(group.run() == kNobody);
    REQUIRE(group.workers[0]->died);
    const std::string sentence =
        "the RPC group of world_size=3 cannot start: worker 'w2' (rank 2) ended before all workers "
        "were there";
    const size_t others = isYounger ? 3 : 2;
    CHECK(group.errors() == std::vector<std::string>(others, isYounger ? "" : sentence));
  }
}

TEST_CASE(
    "processes started anew do not hear of one that ended before it joined", "[membership_start]") {
  SimulatedGroup group(1);
  endEarly(group, rankOf(2, 1), [](Membership& membership) { membership.announce(); });
  for (const WorkerId id : {0, 1}) {
    SimulatedWorker::Settings settings = rankOf(2, id);
    settings.start = seconds(2 + 2 * id);
    settings.hasEnded = [](const WorkerRecord& worker, bool) { return worker.incarnation == 1; };
    group.add(settings, joinAsProcess(/* isYounger */ true));
  }
  REQUIRE(group.run() == kNobody);
  CHECK(group.errors() == std::vector<std::string>(3));
}

TEST_CASE("a worker that ends once the group runs does not end its start", "[membership_start]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    std::set<WorkerId> ended;
    for (WorkerId id = 0; id < 3; ++id) {
      SimulatedWorker::Settings settings = rankOf(3, id);
      settings.start = seconds(id);
      settings.hasEnded = [&ended](const WorkerRecord& worker, bool) {
        return ended.contains(worker.id);
      };
      settings.store.maxLatency = milliseconds(200);
      group.add(settings, [&ended](SimulatedWorker& self) {
        self.start();
        ended.insert(self.settings.id);
      });
    }
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(3));
  }
}
