// What becomes of a peer that is dead.
#include <catch2/catch.hpp>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

namespace {

const std::string kReason = "its process 7 has ended";
const std::string kDied = "worker 'w1' (rank 1) has died: its process 7 has ended";

void connect(World& world, MemoryWorker& from, MemoryWorker& to) {
  const CallbackNote& note = from.connect(to);
  REQUIRE(world.network.deliverUntil(
      [&] { return note.called() && to.stateOf(from) == PeerState::connected; }));
}

void declareDead(const MemoryWorker& by, const MemoryWorker& peer) {
  by.links().markDead(peer.record().id, peer.record().incarnation, kReason);
}

// Of a dynamic group.
WorkerSettings letsIn(bool reclaims) {
  WorkerSettings settings;
  settings.unknownPeer = [](const Hello&) { return std::nullopt; };
  settings.reclaims = reclaims;
  return settings;
}

// A process that comes in place of worker 1's.
WorkerSettings newcomer(uint64_t incarnation = 5000) {
  WorkerSettings settings;
  settings.incarnation = incarnation;
  settings.address = "memory://again" + std::to_string(incarnation);
  return settings;
}

WorkerSettings patientWithTheDead() {
  WorkerSettings settings;
  settings.limits.deathGrace = std::chrono::hours(1);
  return settings;
}

} // namespace

TEST_CASE("sends to a dead peer fail at once and say why", "[link_manager_death]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  declareDead(a, b);
  CHECK(a.stateOf(b) == PeerState::dead);
  const size_t dials = world.network.dials();
  CHECK(a.send(b, "alive?").error().code() == ErrorCode::workerDied);
  CHECK(a.send(b, "alive?").error().message() == kDied);
  CHECK(world.network.dials() == dials);
}

TEST_CASE("what waits for the dial of a peer that dies fails", "[link_manager_death]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  const CallbackNote& note = a.send(b, "waits");
  declareDead(a, b);
  CHECK(note.error().message() == kDied);
  world.network.deliverAll();
  CHECK(a.stateOf(b) == PeerState::dead);
}

TEST_CASE("what a peer has sent before it died arrives", "[link_manager_death]") {
  World world;
  MemoryWorker a(world, 0, patientWithTheDead());
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  b.send(a, "last words");
  declareDead(a, b);
  CHECK(a.losses().empty());
  b.context().join(); // its links end, as those of a process
  REQUIRE(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::dead; }));
  CHECK(a.texts() == Texts{"last words"});
  CHECK(a.deaths() == Texts{kDied});
  CHECK(a.losses().size() == 1);
}

TEST_CASE("a link that does not end is closed a moment after the death", "[link_manager_death]") {
  WorkerSettings settings;
  settings.limits.deathGrace = milliseconds(1);
  World world;
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  declareDead(a, b);
  REQUIRE(world.network.deliverUntil([&] { return a.deaths() == Texts{kDied}; }));
  CHECK(a.losses().back().error.message() == kDied);
}

TEST_CASE("a peer dies once, and not after it has left", "[link_manager_death]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  SECTION("twice") {
    declareDead(a, b);
    declareDead(a, b);
    CHECK(a.deaths() == Texts{kDied});
    CHECK(a.losses().size() == 1);
  }
  SECTION("after its goodbye") {
    a.links().markLeft(b.record().id);
    declareDead(a, b);
    CHECK(a.deaths().empty());
    CHECK(a.stateOf(b) == PeerState::left);
  }
  SECTION("as an earlier incarnation") {
    a.links().markDead(b.record().id, b.record().incarnation + 1, kReason);
    CHECK(a.stateOf(b) == PeerState::idle);
  }
}

TEST_CASE("a worker that was taken for dead is refused and told why", "[link_manager_death]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  declareDead(a, b);
  const CallbackNote& note = b.connect(a);
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::declaredDead);
  CHECK(note.error().message().find("the group goes on without it: " + kDied) != std::string::npos);
  CHECK(a.stateOf(b) == PeerState::dead);
}

TEST_CASE("another incarnation takes the place of a dead peer", "[link_manager_death]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  declareDead(a, b);
  MemoryWorker again(world, 1, newcomer());
  a.links().addPeer(again.record());
  again.links().addPeer(a.record());
  again.start();
  const CallbackNote& note = a.send(again, "welcome back");
  CHECK(note.succeeded());
  CHECK(again.texts() == Texts{"welcome back"});
}

TEST_CASE(
    "a hello of another incarnation tells that the former one is dead", "[link_manager_death]") {
  World world;
  MemoryWorker a(world, 0, letsIn(/* reclaims */ false));
  MemoryWorker b(world, 1);
  introduce(a, b);
  const bool connected = GENERATE(false, true);
  CAPTURE(connected);
  if (connected) {
    connect(world, a, b);
  }
  MemoryWorker again(world, 1, newcomer());
  again.links().addPeer(a.record());
  again.start();
  const CallbackNote& note = again.send(a, "here again");
  world.network.deliverAll();
  b.context().join(); // its links end, as those of a process
  REQUIRE(world.network.deliverUntil([&] { return a.deaths().size() == 1; }));
  CHECK(
      a.deaths()[0] ==
      "worker 'w1' (rank 1) has died: another process has come under its name and rank");

  // Nothing of the new one is heard before all of the old one is gone.
  world.network.deliverAll();
  CHECK(a.texts().empty());
  CHECK(a.stateOf(b) == PeerState::dead);
  SECTION("it is let in once that is reclaimed") {
    a.links().reclaimed(1, b.record().incarnation);
    REQUIRE(world.network.deliverUntil([&] { return note.called() && !a.texts().empty(); }));
    CHECK(note.succeeded());
    CHECK(a.texts() == Texts{"here again"});
    CHECK(a.statusOf(again).record.incarnation == 5000);
    CHECK(a.losses().size() == 1); // of the old one
  }
  SECTION("that something else is reclaimed does not matter") {
    a.links().reclaimed(1, 1);
    a.links().reclaimed(2, b.record().incarnation);
    world.network.deliverAll();
    CHECK(a.texts().empty());
  }
  SECTION("it may be shutting down by then") {
    a.links().leave(milliseconds(0));
    a.links().reclaimed(1, b.record().incarnation);
    REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
    CHECK_FALSE(note.succeeded());
  }
}

TEST_CASE("a former incarnation is not let in again", "[link_manager_death]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0, letsIn(/* reclaims */ true));
  MemoryWorker b(world, 1);
  introduce(a, b);
  declareDead(a, b);
  MemoryWorker again(world, 1, newcomer());
  again.links().addPeer(a.record());
  again.start();
  const CallbackNote& welcome = again.connect(a);
  REQUIRE(world.network.deliverUntil([&] { return welcome.called(); }));
  CHECK(welcome.succeeded());
  const CallbackNote& late = b.connect(a);
  REQUIRE(world.network.deliverUntil([&] { return late.called(); }));
  CHECK(late.error().code() == ErrorCode::declaredDead);
  CHECK(
      late.error().message().find("another process has come under its name and rank") !=
      std::string::npos);
  CHECK(a.statusOf(b).record.incarnation == 5000);
}

TEST_CASE(
    "a worker that has left comes back, also while that is being heard", "[link_manager_death]") {
  World world;
  MemoryWorker a(world, 0, letsIn(/* reclaims */ false));
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  MemoryWorker again(world, 1, newcomer());
  again.links().addPeer(a.record());
  again.start();
  const CallbackNote& note = again.send(a, "here again");
  const bool heardBefore = GENERATE(false, true);
  CAPTURE(heardBefore);
  if (!heardBefore) {
    world.network.deliverAll();
  }
  a.links().markLeft(1);
  world.network.deliverAll();
  CHECK(a.texts().empty());
  a.links().reclaimed(1, b.record().incarnation);
  REQUIRE(world.network.deliverUntil([&] { return note.called() && !a.texts().empty(); }));
  CHECK(a.texts() == Texts{"here again"});
  CHECK(a.deaths().empty());
}

TEST_CASE("a worker that is declared dead is told", "[link_manager_death]") {
  WorkerSettings settings;
  settings.limits.deathGrace = milliseconds(1);
  settings.limits.sessionTimeout = GENERATE(milliseconds(0), milliseconds(3600 * 1000));
  World world;
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1, settings);
  introduce(a, b);
  const std::string sentence = "the group goes on without it: " + kDied;
  SECTION("on the link that it has") {
    connect(world, a, b);
    declareDead(a, b);
    REQUIRE(world.network.deliverUntil([&] { return !b.declaredDead().empty(); }));
  }
  SECTION("when it dials") {
    declareDead(a, b);
    const CallbackNote& note = b.send(a, "still here");
    REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
    CHECK_FALSE(note.succeeded());
  }
  SECTION("when it goes on with a session") {
    connect(world, a, b);
    world.network.cut();
    declareDead(a, b);
    REQUIRE(world.network.deliverUntil(
        [&] { return !b.declaredDead().empty() || settings.limits.sessionTimeout.count() == 0; }));
    if (settings.limits.sessionTimeout.count() == 0) {
      b.send(a, "still here");
      REQUIRE(world.network.deliverUntil([&] { return !b.declaredDead().empty(); }));
    }
  }
  CHECK(b.declaredDead().front() == sentence);
}

TEST_CASE("a worker whose part is over talks to nobody", "[link_manager_death]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  MemoryWorker c(world, 2);
  startTogether(std::vector{&a, &b, &c});
  connect(world, a, b);
  const CallbackNote& pending = b.send(c, "waits for a dial");
  b.links().endPart("nobody has heard from it");
  b.links().endPart("and again");
  const Error error = *b.links().declaredDead();
  CHECK(error.code() == ErrorCode::declaredDead);
  CHECK(
      error.message() ==
      "this worker takes part in the RPC group no more, start it anew: nobody has heard from it");
  CHECK(pending.error().message() == error.message());
  CHECK(pending.error().executed() == Executed::no);
  REQUIRE(b.losses().size() == 2); // both peers, once each
  CHECK(b.losses()[0].error.message() == error.message());
  CHECK(b.send(a, "anybody?").error().message() == error.message());
  world.network.deliverAll(); // the end of its link
  const CallbackNote& note = a.connect(b);
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().message() == "worker 'w1' (rank 1) has died: others have declared it dead");
  CHECK(a.declaredDead().empty()); // it is not the one
  REQUIRE(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::dead; }));
}

TEST_CASE("what a former incarnation has sent can be told apart", "[link_manager_death]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0, letsIn(/* reclaims */ true));
  MemoryWorker b(world, 1);
  introduce(a, b);
  const uint64_t first = b.record().incarnation;
  CHECK(a.links().incarnationOf(1) == first);
  CHECK_FALSE(a.links().isFormer(1, first));
  MemoryWorker again(world, 1, newcomer());
  a.links().addPeer(again.record());
  CHECK(a.links().incarnationOf(1) == again.record().incarnation);
  CHECK(a.links().isFormer(1, first));
  CHECK_FALSE(a.links().isFormer(1, again.record().incarnation));
}
