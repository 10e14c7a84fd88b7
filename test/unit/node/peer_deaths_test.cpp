// Who finds a death out, who hears of it, and who declares nobody dead.
#include <catch2/catch.hpp>

#include "backend/base/bytes.h"
#include "backend/node/peer_deaths.h"
#include "backend/wire/own_requests.h"
#include "test/unit/support/memory_node.h"

using namespace torchwire;
using Catch::Matchers::Contains;
using std::chrono::milliseconds;

namespace {

const Error kSilent(ErrorCode::silent, "nothing was heard");

struct Three : NodeWorld {
  Three() {
    meet({&first, &second, &third});
  }

  bool waitFor(const std::function<bool()>& holds) {
    return notifier.waitUntil(holds);
  }
  bool allKnow() {
    return waitFor([&] {
      return first.stateOf(third) == PeerState::dead && second.stateOf(third) == PeerState::dead;
    });
  }

  MemoryNode first{*this, 0};
  MemoryNode second{*this, 1};
  MemoryNode third{*this, 2};
};

void tellOfDeath(MemoryNode& from, const MemoryNode& to, const MemoryNode& dead) {
  OwnCalls::Body body;
  ByteWriter out(body);
  Death{dead.record().id, dead.record().incarnation, "it was seen to end"}.write(out);
  from.node().ownCalls().ask(
      to.record().id, own_requests::kDeath, std::move(body), milliseconds(10000));
}

} // namespace

TEST_CASE("of a process that ends all others hear", "[peer_deaths]") {
  Three group;
  group.first.processes().end(2);
  REQUIRE(group.allKnow());
  REQUIRE(group.waitFor([&] { return group.second.deathsHeard().size() == 1; }));
  CHECK_THAT(group.second.deathsHeard()[0], Contains("worker 'w2' (rank 2) has died: its process"));
  CHECK_THAT(group.second.deathsHeard()[0], Contains("has ended"));
  CHECK(group.first.stateOf(group.second) == PeerState::connected);
}

TEST_CASE("of a death all others hear where the store is gone", "[peer_deaths]") {
  Three group;
  group.store.isGone = true;
  group.first.processes().end(2);
  CHECK(group.allKnow());
}

TEST_CASE("a process that runs another program is found once its link breaks", "[peer_deaths]") {
  Three group;
  group.first.processes().replace(2);
  group.first.node().deaths().linkBroken(2);
  CHECK(group.allKnow());
}

TEST_CASE("a silent peer is dead where another one is heard", "[peer_deaths]") {
  Three group;
  group.first.node().deaths().peerLost(2, kSilent);
  REQUIRE(group.allKnow());
  REQUIRE(group.waitFor([&] { return group.second.deathsHeard().size() == 1; }));
  CHECK_THAT(
      group.second.deathsHeard()[0], Contains("worker 'w0' (rank 0) had not heard from it for"));
}

TEST_CASE("a worker that hears nobody declares nobody dead", "[peer_deaths]") {
  Three group;
  group.network.refuseDials("memory://w1", 100);
  group.first.node().deaths().peerLost(2, kSilent);
  REQUIRE(group.first.awaitDeathTasks(2)); // the suspicion, and the judgement
  CHECK(group.first.stateOf(group.third) == PeerState::idle);
  CHECK(group.second.stateOf(group.third) == PeerState::idle);
}

TEST_CASE("a silent peer that is heard again stays", "[peer_deaths]") {
  Three group;
  group.first.links().connect(2, [](const Error&) {});
  REQUIRE(group.waitFor([&] { return group.first.stateOf(group.third) == PeerState::connected; }));
  group.first.node().deaths().peerLost(2, kSilent);
  REQUIRE(group.first.awaitDeathTasks(2)); // the suspicion, and the judgement
  CHECK(group.first.stateOf(group.third) == PeerState::connected);
}

TEST_CASE("a silent peer stays where the store is gone", "[peer_deaths]") {
  Three group;
  group.store.isGone = true;
  group.first.node().deaths().peerLost(2, kSilent);
  REQUIRE(group.first.awaitDeathTasks(2)); // the suspicion, and the judgement
  CHECK(group.first.stateOf(group.third) == PeerState::idle);
}

TEST_CASE("the host of a process that is not to be seen tells of its end", "[peer_deaths]") {
  Three group;
  group.first.processes().forget(2);
  SECTION("nobody listens there") {
    group.first.node().deaths().peerLost(2, Error(ErrorCode::nobodyListens, "nobody listens"));
    CHECK(group.allKnow());
  }
  SECTION("its link broke: it is dialed") {
    group.first.node().deaths().peerLost(2, Error(ErrorCode::linkBroken, "reset"));
    CHECK(group.waitFor([&] { return group.first.stateOf(group.third) == PeerState::connected; }));
  }
}

TEST_CASE("a peer that leaves is not watched any more", "[peer_deaths]") {
  Three group;
  group.first.node().deaths().peerLost(2, Error(ErrorCode::peerLeft, "it left"));
  CHECK_FALSE(group.first.processes().watches(2));
  group.first.processes().end(2);
  CHECK(group.first.stateOf(group.third) == PeerState::idle);
}

TEST_CASE("a worker that is said to be dead takes no part any more", "[peer_deaths]") {
  Three group;
  CHECK_NOTHROW(group.third.node().deaths().expectPart());
  SECTION("by a peer") {
    CHECK_THROWS(tellOfDeath(group.first, group.third, group.third)); // it ends all links
  }
  SECTION("by the store's list, on which it comes to see it") {
    group.first.node().deaths().peerLost(2, kSilent);
    REQUIRE(group.allKnow());
    group.third.processes().end(1);
  }
  REQUIRE(group.waitFor([&] { return group.third.links().declaredDead().has_value(); }));
  CHECK_THROWS_AS(group.third.node().deaths().expectPart(), Membership::LeftOut);
}

TEST_CASE("a death of another incarnation is nobody's", "[peer_deaths]") {
  Three group;
  OwnCalls::Body body;
  ByteWriter out(body);
  Death{2, group.third.record().incarnation + 1, "another one"}.write(out);
  group.first.node().ownCalls().ask(1, own_requests::kDeath, std::move(body), milliseconds(10000));
  CHECK(group.second.stateOf(group.third) == PeerState::idle);
}
