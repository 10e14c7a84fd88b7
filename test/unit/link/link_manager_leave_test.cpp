// How a worker leaves, and what its peers make of it.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

namespace {

constexpr milliseconds kNone{0};
constexpr milliseconds kPatience{3000};

void connect(World& world, MemoryWorker& from, MemoryWorker& to) {
  const CallbackNote& note = from.connect(to);
  REQUIRE(world.network.deliverUntil(
      [&] { return note.called() && to.stateOf(from) == PeerState::connected; }));
}

// A leave on a thread of its own. The destructor waits for it.
class Leave {
 public:
  Leave(World& world, MemoryWorker& worker)
      : thread_([this, &world, &worker] {
          const auto start = Clock::now();
          worker.links().leave(kPatience);
          tookAllPatience_ = Clock::now() - start >= kPatience;
          done_ = true;
          world.ledger.notifier().notify();
        }) {}
  ~Leave() {
    thread_.join();
  }
  Leave(const Leave&) = delete;
  Leave& operator=(const Leave&) = delete;

  bool isDone() const {
    return done_;
  }
  bool tookAllPatience() const {
    return tookAllPatience_;
  }

 private:
  std::atomic<bool> tookAllPatience_{false};
  std::atomic<bool> done_{false};
  std::thread thread_; // last: it uses the others
};

} // namespace

TEST_CASE("a worker that leaves says goodbye", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  Leave leave(world, a);
  REQUIRE(world.network.deliverUntil([&] { return !b.losses().empty(); }));
  CHECK(b.losses()[0].error.code() == ErrorCode::peerLeft);
  CHECK(b.losses()[0].error.message() == "worker 'w0' (rank 0) has left the RPC group");
  CHECK(b.stateOf(a) == PeerState::left);
  CHECK(b.statusOf(a).traffic.linksLost == 0);
  CHECK(world.network.deliverUntil([&] { return leave.isDone(); }));
  CHECK_FALSE(leave.tookAllPatience());
  CHECK(b.losses().size() == 1);
}

TEST_CASE("what a worker says of why it leaves is in its peers' errors", "[link_manager]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  a.links().explainLeave({"it ended by ValueError: on purpose", true});
  a.links().explainLeave(
      {"it called rpc.shutdown(graceful=False)", false}); // which comes of the first
  Leave leave(world, a);
  REQUIRE(world.network.deliverUntil([&] { return !b.losses().empty(); }));
  CHECK(b.losses()[0].error.code() == ErrorCode::peerLeft);
  CHECK(
      b.losses()[0].error.message() ==
      "worker 'w0' (rank 0) has left the RPC group: it ended by ValueError: on purpose");
  CHECK(b.links().goodbyeOf(0).processEnds);
}

TEST_CASE("sends to a worker that left fail at once", "[link_manager]") {
  World world(Style::synchronous);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  a.links().leave(kPatience);
  const size_t dials = world.network.dials();
  CHECK(b.send(a, "still there?").error().code() == ErrorCode::peerLeft);
  CHECK(b.connect(a).error().code() == ErrorCode::peerLeft);
  CHECK(world.network.dials() == dials);
}

TEST_CASE("leaving waits until every peer knows", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  Leave leave(world, a);
  // b reads the goodbye, but a has not heard that b closed.
  REQUIRE(world.ledger.notifier().waitUntil([&] {
    world.network.deliverOne();
    return b.stateOf(a) == PeerState::left;
  }));
  CHECK_FALSE(leave.isDone());
  CHECK(world.network.deliverUntil([&] { return leave.isDone(); }));
  CHECK_FALSE(leave.tookAllPatience());
}

TEST_CASE("leaving does not wait for ever for a peer that hangs", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  a.links().leave(milliseconds(5)); // nobody pumps: b hangs
  world.network.deliverAll();
  CHECK(b.losses().front().error.code() == ErrorCode::peerLeft);
  CHECK(world.network.openLinks() == 0);
}

TEST_CASE("two workers may leave at the same time", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  Leave leaveA(world, a);
  Leave leaveB(world, b);
  CHECK(world.network.deliverUntil([&] { return leaveA.isDone() && leaveB.isDone(); }));
  CHECK_FALSE(leaveA.tookAllPatience());
  CHECK_FALSE(leaveB.tookAllPatience());
}

TEST_CASE("a worker without links leaves at once, and may leave twice", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  a.links().leave(std::chrono::hours(1));
  a.links().leave(std::chrono::hours(1));
  SUCCEED();
}

TEST_CASE("a worker that leaves sends no more", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  a.links().leave(kNone);
  const CallbackNote& note = a.send(b, "too late");
  CHECK(note.error().code() == ErrorCode::shutDown);
  CHECK(note.error().message() == "this worker is shutting down its RPC agent");
  CHECK(world.network.dials() == 0);
}

TEST_CASE("the goodbye is the last frame on a link", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  b.start();
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  world.network.deliverAll();
  const std::vector toTheEnd = {FrameKind::welcome, FrameKind::goodbye};
  Leave leave(world, b);
  REQUIRE(world.network.deliverUntil([&] { return peer.heard() == toTheEnd; }));
  CallbackNote& late = world.ledger.note("a late response");
  b.links().sendIfConnected(0, textFrame("response"), CallbackLedger::expect(late));
  CHECK(late.error().code() == ErrorCode::linkBroken);
  world.network.deliverAll();
  CHECK(peer.heard() == toTheEnd);
  peer.close();
  CHECK(world.network.deliverUntil([&] { return leave.isDone(); }));
}

TEST_CASE("sends that wait for a dial fail when their worker leaves", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  const CallbackNote& note = a.send(b, "waiting");
  SECTION("while it dials") {}
  SECTION("while it waits for the next attempt") {
    world.network.cut();
    world.network.deliverAll();
  }
  a.links().leave(kNone);
  CHECK(note.error().code() == ErrorCode::shutDown);
  world.network.deliverAll();
  CHECK(world.network.openLinks() == 0);
}

TEST_CASE("a worker that leaves lets nobody in", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  b.links().leave(kNone);
  const CallbackNote& note = a.send(b, "hello?");
  world.network.deliverAll();
  CHECK(note.error().code() == ErrorCode::refused);
  CHECK_THAT(note.error().message(), Catch::Contains("worker 'w1' (rank 1) is shutting down"));
}

TEST_CASE("a worker that leaves before it was in the group closes what waited", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  a.links().addPeer(b.record());
  a.start();
  a.send(b, "early");
  world.network.deliverAll();
  b.links().leave(kNone);
  b.context().join();
  CHECK(world.network.deliverUntil([&] { return world.ledger.allCalled(); }));
}

TEST_CASE(
    "leaving does not wait for a link that came up too late for its goodbye", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  MemoryWorker c(world, 2);
  introduce(a, c);
  connect(world, a, c);
  a.links().addPeer(b.record());
  b.links().addPeer(a.record());
  b.start();
  a.send(b, "waiting");
  while (b.stateOf(a) != PeerState::connected) { // until b's welcome is on its way
    REQUIRE(world.network.deliverOne());
  }
  Leave leave(world, a); // waits for c
  REQUIRE(world.ledger.notifier().waitUntil([&] { return world.ledger.allCalled(); }));
  CHECK(world.network.deliverUntil([&] { return leave.isDone(); }));
  CHECK_FALSE(leave.tookAllPatience());
}

TEST_CASE("a hello that its sender's goodbye overtook does not bring it back", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  b.start();
  RawPeer first = RawPeer::dial(world, b);
  first.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  first.say(bareFrame(FrameKind::goodbye));
  world.network.deliverAll();
  REQUIRE(b.links().status().front().state == PeerState::left);
  RawPeer overtaken = RawPeer::dial(world, b);
  overtaken.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  world.network.deliverAll();
  CHECK(b.links().status().front().state == PeerState::left);
}

TEST_CASE("a peer marked as left loses its link and what waits for it", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  SECTION("while it is dialed") {
    const CallbackNote& note = a.send(b, "waiting");
    a.links().markLeft(1);
    CHECK(note.error().code() == ErrorCode::peerLeft);
    CHECK(a.losses().size() == 1);
  }
  SECTION("when it is connected") {
    connect(world, a, b);
    a.links().markLeft(1);
    CHECK(a.losses().size() == 1);
    world.network.deliverAll();
    CHECK(b.losses().size() == 1);
  }
  a.links().markLeft(1);
  a.links().markLeft(12345); // unknown: nothing to do
  world.network.deliverAll();
  CHECK(a.stateOf(b) == PeerState::left);
  CHECK(a.losses().size() == 1);
  CHECK(world.network.openLinks() == 0);
}
