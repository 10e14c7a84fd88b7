#include "backend/wire/roster.h"

#include <catch2/catch.hpp>
#include <random>

#include "backend/wire/frame.h"

using namespace torchwire;

namespace {

WorkerRecord worker(const std::string& name, WorkerId id) {
  WorkerRecord record;
  record.name = name;
  record.id = id;
  record.incarnation = 10 + static_cast<uint64_t>(id);
  record.address = "tcp://10.0.0.1:" + std::to_string(4000 + id);
  record.torchVersion = "2.11.0";
  record.protocolVersion = kProtocolVersion;
  return record;
}

Roster rosterOf(uint32_t worldSize) {
  Roster roster;
  roster.worldSize = worldSize;
  roster.groupId = 42;
  roster.workers = {worker("ps", 0), worker("trainer", 2)};
  return roster;
}

std::string objection(const Roster& roster, const WorkerRecord& joining, uint32_t worldSize) {
  return roster.objectionTo(joining, worldSize).value_or("");
}

} // namespace

TEST_CASE("a worker is described by name and rank", "[roster]") {
  CHECK(worker("trainer0", 2).describe() == "worker 'trainer0' (rank 2)");
}

TEST_CASE("a worker's name follows PyTorch's rule", "[roster]") {
  CHECK_FALSE(objectionToName("a"));
  CHECK_FALSE(objectionToName("Trainer_0-b:7"));
  CHECK_FALSE(objectionToName(std::string(127, 'x')));
  CHECK(objectionToName("") == "a worker's name must not be empty");
  CHECK(
      objectionToName(std::string(128, 'x')) ==
      "the worker name '" + std::string(40, 'x') +
          "...' has 128 characters; at most 127 are allowed");
  CHECK(
      objectionToName("my worker") ==
      "the worker name 'my worker' contains ' '; use letters, digits, '_', '-' and ':' only");
  for (const char* name : {"a/b", "a.b", "a@b", "ä", "a\n"}) {
    CHECK(objectionToName(name));
  }
}

TEST_CASE("workers are found by rank and by name", "[roster]") {
  const Roster roster = rosterOf(3);
  REQUIRE(roster.find(2) != nullptr);
  CHECK(roster.find(2)->name == "trainer");
  REQUIRE(roster.find("ps") != nullptr);
  CHECK(roster.find("ps")->id == 0);
  CHECK(roster.find(1) == nullptr);
  CHECK(roster.find("nobody") == nullptr);
}

TEST_CASE("a static group is complete once all its workers are there", "[roster]") {
  CHECK_FALSE(rosterOf(3).isComplete());
  CHECK(rosterOf(2).isComplete());
  CHECK(rosterOf(2).isStatic());
  CHECK_FALSE(rosterOf(0).isComplete());
  CHECK_FALSE(rosterOf(0).isStatic());
}

TEST_CASE("a worker that fits may join", "[roster]") {
  CHECK(objection(rosterOf(3), worker("new", 1), 3).empty());
  CHECK(objection(rosterOf(0), worker("new", 1), 0).empty());
  CHECK(objection(Roster(), worker("first", 0), 4).empty());
}

TEST_CASE("a worker with a bad name may not join", "[roster]") {
  CHECK_THAT(objection(rosterOf(3), worker("a b", 1), 3), Catch::Contains("contains ' '"));
}

TEST_CASE("a worker with another world size may not join", "[roster]") {
  CHECK(
      objection(rosterOf(3), worker("new", 1), 4) ==
      "worker 'new' (rank 1) was started with world_size=4 but the group, first joined by worker "
      "'ps' (rank 0), has world_size=3: start all workers with the same world_size");
}

TEST_CASE("static and dynamic members may not mix", "[roster]") {
  const std::string mixed =
      "RPC group mixes statically and dynamically initialized members which is not supported. ";
  CHECK_THAT(objection(rosterOf(3), worker("new", 1), 0), Catch::StartsWith(mixed));
  CHECK_THAT(objection(rosterOf(0), worker("new", 1), 3), Catch::StartsWith(mixed));
  CHECK_THAT(
      objection(rosterOf(0), worker("new", 1), 3),
      Catch::Contains("no world_size (a dynamic group)"));
}

TEST_CASE("a rank outside a static group may not join", "[roster]") {
  CHECK(
      objection(rosterOf(3), worker("new", 3), 3) ==
      "worker 'new' (rank 3) is outside the group: ranks go from 0 to 2");
  CHECK_FALSE(objection(rosterOf(3), worker("new", -1), 3).empty());
}

TEST_CASE("a rank outside a dynamic group may not join", "[roster]") {
  CHECK(
      objection(rosterOf(0), worker("new", -1), 0) ==
      "worker 'new' (rank -1) is outside the group: ranks go from 0 to 32767");
  CHECK(objection(rosterOf(0), worker("new", 32767), 0).empty());
  CHECK(
      objection(rosterOf(0), worker("new", 32768), 0) ==
      "worker 'new' (rank 32768) is outside the group: ranks go from 0 to 32767");
}

TEST_CASE("a rank that is taken may not join", "[roster]") {
  CHECK(
      objection(rosterOf(3), worker("new", 2), 3) ==
      "rank 2 is not unique: worker 'trainer' and worker 'new' both have it; give every worker its "
      "own rank");
}

TEST_CASE("a name that is taken may not join", "[roster]") {
  CHECK(
      objection(rosterOf(3), worker("trainer", 1), 3) ==
      "worker name 'trainer' is not unique: rank 2 and rank 1 both have it; give every worker its "
      "own name");
}

TEST_CASE("a worker with another version may not join", "[roster]") {
  WorkerRecord joining = worker("new", 1);
  SECTION("of torchwire's protocol") {
    joining.protocolVersion = 99;
    CHECK(
        objection(rosterOf(3), joining, 3) ==
        "worker 'ps' (rank 0) speaks torchwire protocol " + std::to_string(kProtocolVersion) +
            " but worker 'new' (rank 1) speaks 99: install the same torchwire on both");
  }
  SECTION("of torch") {
    joining.torchVersion = "2.12.0";
    CHECK(
        objection(rosterOf(3), joining, 3) ==
        "worker 'ps' (rank 0) runs torch 2.11.0 but worker 'new' (rank 1) runs torch 2.12.0: "
        "install the same torch on both");
  }
}

TEST_CASE("only the incarnation that leaves is taken off the list", "[roster]") {
  Roster roster = rosterOf(0);
  WorkerRecord earlier = worker("trainer", 2);
  earlier.incarnation -= 1;
  roster.remove(earlier);
  CHECK(roster.workers.size() == 2);
  roster.remove(worker("trainer", 2));
  REQUIRE(roster.workers.size() == 1);
  CHECK(roster.workers.front().name == "ps");
  roster.remove(worker("trainer", 2));
  CHECK(roster.workers.size() == 1);
}

TEST_CASE("a roster survives the store", "[roster]") {
  const Roster roster = Roster::decode(rosterOf(3).encode());
  CHECK(roster.worldSize == 3);
  CHECK(roster.groupId == 42);
  REQUIRE(roster.workers.size() == 2);
  const WorkerRecord& second = roster.workers[1];
  CHECK(second.name == "trainer");
  CHECK(second.id == 2);
  CHECK(second.incarnation == 12);
  CHECK(second.address == "tcp://10.0.0.1:4002");
  CHECK(second.torchVersion == "2.11.0");
  CHECK(second.protocolVersion == kProtocolVersion);
}

TEST_CASE("an empty roster survives the store", "[roster]") {
  CHECK(Roster::decode(Roster().encode()).workers.empty());
}

TEST_CASE("a roster cut short is refused wherever the cut is", "[roster]") {
  const std::vector<char> whole = rosterOf(3).encode();
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
    CHECK_THROWS_AS(Roster::decode(cut), FormatError);
  }
}

TEST_CASE("a list that is not torchwire's is refused", "[roster]") {
  CHECK_THROWS_WITH(
      Roster::decode(std::vector<char>(100, 'x')), "the store's member list is not torchwire's");
}

TEST_CASE("a list of another protocol is refused with both versions", "[roster]") {
  std::vector<char> bytes = rosterOf(3).encode();
  bytes[sizeof(uint32_t)] = 99;
  bytes.resize(2 * sizeof(uint32_t)); // the rest may have another form
  CHECK_THROWS_WITH(
      Roster::decode(bytes),
      "the workers of this group speak torchwire protocol 99, this one speaks " +
          std::to_string(kProtocolVersion) + ": install the same torchwire on all");
}

TEST_CASE("a roster with a hostile count is refused", "[roster]") {
  std::vector<char> bytes = rosterOf(3).encode();
  const size_t count =
      3 * sizeof(uint32_t) + sizeof(uint64_t) + sizeof(uint8_t); // what stands before it
  const uint32_t hostile = 0xffffffff;
  std::memcpy(bytes.data() + count, &hostile, sizeof(hostile));
  CHECK_THROWS_AS(Roster::decode(bytes), FormatError);
}

TEST_CASE("a roster that is neither open nor closed is refused", "[roster]") {
  std::vector<char> bytes = rosterOf(3).encode();
  bytes[3 * sizeof(uint32_t) + sizeof(uint64_t)] = 2;
  CHECK_THROWS_WITH(Roster::decode(bytes), "expected 0 or 1, found 2");
}

TEST_CASE("no bytes make the roster do more than refuse", "[roster]") {
  const unsigned seed = GENERATE(range(0u, 20u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::vector<char> whole = rosterOf(3).encode();
  for (int i = 0; i < 200; ++i) {
    std::vector<char> bytes = whole;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    try {
      const Roster roster = Roster::decode(bytes);
      CHECK(roster.workers.size() <= bytes.size());
    } catch (const FormatError&) {
      // As it should be; anything else fails the test.
    }
  }
}
