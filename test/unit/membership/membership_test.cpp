// Joining and leaving, in any order of the workers' store operations.
#include "backend/membership/membership.h"

#include <catch2/catch.hpp>
#include <set>

#include "test/unit/support/seeds.h"
#include "test/unit/support/simulated_group.h"

using namespace torchwire;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

const std::vector<std::string> kNobody;

const auto kJoin = [](SimulatedWorker& self) { self.start(); };

void joinAndLeave(SimulatedWorker& self, int times) {
  for (int i = 0; i < times; ++i) {
    self.scheduler->sleepFor(milliseconds(self.scheduler->draw(20)));
    self.start();
    if (self.roster.find(self.settings.name) == nullptr) {
      throw std::runtime_error("not in the roster that it joined");
    }
    self.scheduler->sleepFor(milliseconds(self.scheduler->draw(20)));
    self.membership->leave();
  }
}

// A roster of another protocol version, which is in the bytes after the magic.
KeyValueStore::Value ofProtocol(uint8_t version, std::vector<char> bytes) {
  bytes[4] = static_cast<char>(version);
  return KeyValueStore::Value(bytes.begin(), bytes.end());
}

} // namespace

TEST_CASE("a worker alone joins and shuts down on the system's clock", "[membership]") {
  WorkerRecord self;
  self.name = "alone";
  self.id = 0;
  self.protocolVersion = kProtocolVersion;
  Membership membership(std::make_unique<MemoryStore>(), self, 1, seconds(10));
  membership.agree({});
  const Roster roster = membership.join("tcp://here");
  REQUIRE(namesIn(roster) == std::vector<std::string>{"alone"});
  CHECK(roster.workers[0].address == "tcp://here");
  CHECK(membership.self().address == "tcp://here");
  const Totals totals = membership.sum("join0", {3, 2}, [] {});
  CHECK(totals.started == 3);
  CHECK(totals.finished == 2);
  membership.waitForOthersToFinish();
}

TEST_CASE("the system's clock sleeps", "[membership]") {
  SystemClock clock;
  const auto before = clock.now();
  clock.sleepFor(milliseconds(2));
  CHECK(clock.now() - before >= milliseconds(2));
}

TEST_CASE("all workers of a static group get the same roster", "[membership]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    const uint32_t count = 1 + seed % 8;
    group.addStatic(count, kJoin);
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(count));
    for (const auto& worker : group.workers) {
      CHECK(worker->roster.isComplete());
      CHECK(worker->roster.encode() == group.workers[0]->roster.encode());
    }
  }
}

TEST_CASE("all workers of a group agree on one key", "[membership]") {
  for (const unsigned seed : seeds(20)) {
    for (const std::string secret : {"", "the secret of all workers, not stretched"}) {
      CAPTURE(seed, secret);
      SimulatedGroup group(seed);
      std::set<Proof> proofs;
      for (WorkerId id = 0; id < 5; ++id) {
        group.add(rankOf(5, id), [&](SimulatedWorker& self) {
          WorkerRecord record;
          record.name = self.settings.name;
          record.id = self.settings.id;
          Membership membership(
              std::make_unique<ScheduledStore>(
                  group.store, group.scheduler, ScheduledStore::Settings()),
              record, 5, seconds(60), std::make_unique<ScheduledClock>(group.scheduler));
          proofs.insert(membership
                            .agree(
                                secret.empty() ? std::vector<std::string>()
                                               : std::vector<std::string>{secret})
                            .front()
                            .prove("test", {}));
        });
      }
      REQUIRE(group.run() == kNobody);
      CHECK(proofs.size() == 1);
    }
  }
}

// The others are about to wait for the group to be complete, or do already, when it comes.
TEST_CASE("a worker that cannot be in a static group ends it on all", "[membership]") {
  SimulatedWorker::Settings odd = rankOf(4, 3);
  odd.name = "odd";
  std::string sentence;
  SECTION("for its rank, which another has") {
    odd.id = 1;
    sentence =
        "rank 1 is not unique: worker 'w1' and worker 'odd' both have it; give every worker its "
        "own rank";
  }
  SECTION("for a rank beyond the group") {
    odd.id = 4;
    sentence = "worker 'odd' (rank 4) is outside the group: ranks go from 0 to 3";
  }
  SECTION("for its name, which another has") {
    odd.name = "w1";
    sentence =
        "worker name 'w1' is not unique: rank 1 and rank 3 both have it; give every worker its own "
        "name";
  }
  SECTION("for its name, which is none") {
    odd.name = "o d d";
    sentence = "the worker name 'o d d' contains ' '; use letters, digits, '_', '-' and ':' only";
  }
  SECTION("for its world size") {
    odd.worldSize = 5;
    sentence = "worker 'odd' (rank 3) was started with world_size=5 but the group";
  }
  SECTION("for its having no world size") {
    odd.worldSize = 0;
    sentence = "RPC group mixes statically and dynamically initialized members";
  }
  SECTION("for its torch") {
    odd.torchVersion = "2.0.0";
    sentence = " runs torch 2.11.0 but worker 'odd' (rank 3) runs torch 2.0.0: install the same";
  }
  SECTION("for its protocol") {
    odd.protocolVersion = 99;
    sentence = " but worker 'odd' (rank 3) speaks 99: install the same torchwire on both";
  }
  SECTION("for its secret") {
    odd.secret = "a secret that nobody else has, not stretched";
    sentence = "worker 'odd' (rank 3) was started with a group secret, but ";
  }
  for (const unsigned seed : seeds(30)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 3; ++id) {
      group.add(rankOf(4, id), kJoin);
    }
    odd.start = milliseconds(seed % 2);
    odd.start +=
        std::chrono::microseconds(1); // the others have entered, whose operations take no time
    group.add(odd, kJoin);
    REQUIRE(group.run() == kNobody);
    CHECK_THAT(group.workers[0]->error, Catch::Contains(sentence));
    CHECK(group.errors() == std::vector<std::string>(4, group.workers[0]->error));
    CHECK(group.workers[0]->end - Clock::TimePoint() < seconds(1)); // nobody waits for a time-out
  }
}

// Where it comes first, each of the others is the one that does not fit; the first of them says so of itself, and all of
// them that.
TEST_CASE("workers that do not fit together all fail, whoever comes first", "[membership]") {
  SimulatedWorker::Settings odd = rankOf(4, 3);
  odd.name = "odd";
  SECTION("in torch") {
    odd.torchVersion = "2.0.0";
  }
  SECTION("in world size") {
    odd.worldSize = 5;
  }
  SECTION("in secret") {
    odd.secret = "a secret that nobody else has, not stretched";
  }
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.add(odd, kJoin);
    for (WorkerId id = 0; id < 3; ++id) {
      group.add(rankOf(4, id), kJoin);
    }
    REQUIRE(group.run() == kNobody);
    for (const auto& worker : group.workers) {
      CHECK_THAT(worker->error, Catch::Contains("'odd'"));
      CHECK(worker->error == group.workers[0]->error);
      CHECK(worker->end - Clock::TimePoint() < seconds(1));
    }
  }
}

TEST_CASE("a store that another version has written ends a static group on all", "[membership]") {
  std::string key;
  std::vector<char> written;
  SECTION("its credentials") {
    key = "torchwire/credentials";
    written = GroupCredentials().encode();
  }
  SECTION("its roster") {
    key = "torchwire/roster";
    written = Roster().encode();
  }
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.store.set(key, ofProtocol(99, written));
    group.addStatic(4, kJoin);
    REQUIRE(group.run() == kNobody);
    const std::string sentence =
        "the workers of this group speak torchwire protocol 99, this one speaks " +
        std::to_string(kProtocolVersion) + ": install the same torchwire on all";
    CHECK(group.errors() == std::vector<std::string>(4, sentence));
  }
}

TEST_CASE("a worker that comes to a complete group does not end it", "[membership]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 3; ++id) {
      group.add(rankOf(3, id), [&](SimulatedWorker& self) {
        self.start();
        group.scheduler.sleepFor(seconds(2));
        self.totals.push_back(self.membership->sum("join0", {1, 1}, [] {}));
      });
    }
    SimulatedWorker::Settings extra = rankOf(3, 2);
    extra.name = "extra";
    extra.start = seconds(1);
    group.add(extra, kJoin);
    REQUIRE(group.run() == kNobody);
    for (WorkerId id = 0; id < 3; ++id) {
      CHECK(group.workers[id]->error.empty());
    }
    CHECK_THAT(group.workers[3]->error, Catch::StartsWith("rank 2 is not unique"));
  }
}

TEST_CASE(
    "a static group that does not become complete names those who are missing", "[membership]") {
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (const WorkerId id : {0, 2, 4}) {
      SimulatedWorker::Settings settings = rankOf(5, id);
      settings.start = milliseconds(100 * id);
      group.add(settings, kJoin);
    }
    REQUIRE(group.run() == kNobody);
    for (const auto& worker : group.workers) {
      CHECK(
          worker->error ==
          "worker '" + worker->settings.name + "' (rank " + std::to_string(worker->settings.id) +
              ") waited 60 s for the RPC group of world_size=5 to be complete; not there: rank 1, "
              "rank 3");
      const auto waited = worker->end - Clock::TimePoint() - worker->settings.start;
      CHECK(waited >= seconds(60));
      CHECK(waited < milliseconds(60300)); // a pause is 200 ms at most
    }
  }
}

TEST_CASE("a dynamic group's roster has those who have not left", "[membership]") {
  for (const unsigned seed : seeds(50)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 8; ++id) {
      group.add(rankOf(0, id), [](SimulatedWorker& self) {
        joinAndLeave(self, 3);
        if (self.settings.id % 2 == 0) {
          self.start();
        }
      });
    }
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(8));
    CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w0", "w2", "w4", "w6"});
  }
}

TEST_CASE("of two workers of one name or rank, one is in a dynamic group", "[membership]") {
  SimulatedWorker::Settings twin = rankOf(0, 1);
  SECTION("of one rank") {
    twin.name = "twin";
  }
  SECTION("of one name") {
    twin.id = 2;
    twin.name = "w1";
  }
  for (const unsigned seed : seeds(20)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    group.add(rankOf(0, 1), kJoin);
    group.add(twin, kJoin);
    REQUIRE(group.run() == kNobody);
    const bool firstIsIn = group.workers[0]->error.empty();
    CHECK(firstIsIn != group.workers[1]->error.empty());
    CHECK(group.storedRoster().workers.size() == 1);
    CHECK_THAT(group.workers[firstIsIn ? 1 : 0]->error, Catch::Contains("is not unique"));
  }
}

TEST_CASE("a dynamic group that all have left begins anew with another secret", "[membership]") {
  for (const unsigned seed : seeds(30)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 8; ++id) {
      SimulatedWorker::Settings settings = rankOf(0, id);
      const bool late = id >= 4;
      settings.secret = late ? "the secret of the second, not stretched"
                             : "the secret of the first , not stretched";
      settings.start = seconds(late ? 10 : 0);
      group.add(settings, [late](SimulatedWorker& self) {
        self.start();
        if (!late) {
          self.membership->leave();
        }
      });
    }
    REQUIRE(group.run() == kNobody);
    CHECK(group.errors() == std::vector<std::string>(8));
    const Roster roster = group.storedRoster();
    CHECK(namesIn(roster) == std::vector<std::string>{"w4", "w5", "w6", "w7"});
    CHECK(roster.groupId != group.workers[0]->roster.groupId);
  }
}

// Those of the one secret leave while those of the other come: each is in one group or the other, or is told why not.
TEST_CASE("workers of two secrets are never in one dynamic group", "[membership]") {
  for (const unsigned seed : seeds(200)) {
    CAPTURE(seed);
    SimulatedGroup group(seed);
    for (WorkerId id = 0; id < 6; ++id) {
      SimulatedWorker::Settings settings = rankOf(0, id);
      settings.secret = id % 2 == 0 ? "the secret of the even, not stretched"
                                    : "the secret of the odd , not stretched";
      group.add(settings, [](SimulatedWorker& self) { joinAndLeave(self, 3); });
    }
    REQUIRE(group.run() == kNobody);
    std::map<uint64_t, WorkerId> parityOf;
    for (const auto& worker : group.workers) {
      if (!worker->error.empty()) {
        const bool known =
            worker->error.find("was started with another group secret") != std::string::npos ||
            worker->error.find("start this worker again") != std::string::npos;
        CAPTURE(worker->error);
        CHECK(known);
      }
      const WorkerId parity = worker->settings.id % 2;
      for (const WorkerRecord& member : worker->roster.workers) {
        CHECK(member.id % 2 == parity);
      }
    }
    CHECK(group.storedRoster().workers.empty());
  }
}

TEST_CASE("to take one off the list that is not on it changes nothing", "[membership]") {
  SimulatedGroup group(1);
  group.add(rankOf(0, 0), [](SimulatedWorker& self) {
    self.start();
    WorkerRecord other = self.membership->self();
    other.incarnation += 1;
    self.membership->remove(other);
    other.id = 5;
    self.membership->remove(other);
  });
  REQUIRE(group.run() == kNobody);
  CHECK(namesIn(group.storedRoster()) == std::vector<std::string>{"w0"});
}
