#include "backend/link/shutdown_monitor.h"

#include <catch2/catch.hpp>
#include <functional>
#include <stdexcept>

#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kNone{0};

// Cuts the network and waits until the worker has noticed for all these peers.
void loseLinks(World& world, const MemoryWorker& worker, size_t count) {
  world.network.cut();
  REQUIRE(world.network.deliverUntil([&] { return worker.losses().size() == count; }));
}

void connect(World& world, MemoryWorker& worker, const MemoryWorker& peer) {
  const CallbackNote& note = worker.connect(peer);
  REQUIRE(world.network.deliverUntil([&] { return note.succeeded(); }));
}

// What the check throws in the end.
std::string firstComplaint(const std::function<void()>& check) {
  for (;;) {
    try {
      check();
    } catch (const std::runtime_error& e) {
      return e.what();
    }
  }
}

} // namespace

TEST_CASE("a shutdown monitor over peers that are there has no objection", "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  CHECK_NOTHROW(monitor.check());
  world.network.deliverAll();
  CHECK_NOTHROW(monitor.check());
  CHECK(world.network.dials() == 1);
}

TEST_CASE(
    "a shutdown monitor dials the next worker even if there never was a link",
    "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  MemoryWorker c(world, 2);
  startTogether(std::vector{&a, &b, &c});
  SECTION("of the ranks above its own") {
    const ShutdownMonitor monitor(b.links(), 1, kNone, kNone);
    CHECK_NOTHROW(monitor.check());
    world.network.deliverAll();
    CHECK(b.stateOf(c) == PeerState::connected);
    CHECK(b.stateOf(a) == PeerState::idle);
  }
  SECTION("and the first after the last") {
    const ShutdownMonitor monitor(c.links(), 2, kNone, kNone);
    CHECK_NOTHROW(monitor.check());
    world.network.deliverAll();
    CHECK(c.stateOf(a) == PeerState::connected);
    CHECK(c.stateOf(b) == PeerState::idle);
  }
  CHECK(world.network.dials() == 1);
}

TEST_CASE("a worker alone has nobody to watch", "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  CHECK_NOTHROW(monitor.check());
  CHECK(world.network.dials() == 0);
}

TEST_CASE("a shutdown monitor ends when its time is over", "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  const ShutdownMonitor monitor(a.links(), 0, milliseconds(1));
  const std::string complaint =
      "the RPC group did not shut down within 1 ms: some worker has not called rpc.shutdown() or "
      "still has active calls";
  CHECK(firstComplaint([&] { monitor.check(); }) == complaint);
  CHECK(firstComplaint([&] { monitor.checkTime(); }) == complaint);
}

TEST_CASE("a shutdown monitor without a limit has time", "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  CHECK_NOTHROW(monitor.checkTime());
}

TEST_CASE(
    "a shutdown monitor dials a peer whose link broke, and is content if it answers",
    "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  loseLinks(world, a, 1);
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  CHECK_NOTHROW(monitor.check());
  REQUIRE(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::connected; }));
  CHECK_NOTHROW(monitor.check());
}

TEST_CASE("a shutdown monitor names the peer that is gone", "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  loseLinks(world, a, 1);
  world.network.refuseDials(b.record().address, 4);
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  monitor.check();
  REQUIRE(world.network.deliverUntil([&] { return a.losses().size() == 2; }));
  CHECK_THROWS_WITH(
      monitor.check(),
      Catch::StartsWith(
          "the RPC group cannot shut down gracefully: cannot reach worker 'w1' "
          "(rank 1) at memory://w1"));
}

TEST_CASE(
    "a shutdown monitor leaves a peer where nobody listens to who takes it for dead, but not for "
    "long",
    "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  loseLinks(world, a, 1);
  b.context().join();
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  monitor.check();
  REQUIRE(world.network.deliverUntil([&] { return a.losses().size() == 2; }));
  CHECK(a.losses()[1].error.code() == ErrorCode::nobodyListens);
  CHECK_NOTHROW(monitor.check());
  const std::string complaint = firstComplaint([&] { // its process may go on, without RPC
    monitor.check();
    world.network.deliverAll();
  });
  CHECK_THAT(complaint, Catch::StartsWith("the RPC group cannot shut down gracefully: "));
}

TEST_CASE(
    "a shutdown monitor names a peer that left without waiting for the others",
    "[shutdown_monitor]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  connect(world, a, b);
  const std::string reason = GENERATE("", "it called rpc.shutdown(graceful=False)");
  b.links().explainLeave({reason, false});
  b.links().leave(kNone);
  world.network.deliverAll();
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  CHECK_THROWS_WITH(
      monitor.check(),
      "the RPC group cannot shut down gracefully: worker 'w1' (rank 1) has left the RPC group" +
          (reason.empty() ? " without waiting for the others" : ": " + reason));
  CHECK_NOTHROW(monitor.checkTime());
}

TEST_CASE("a peer that answers does not hide one that is gone", "[shutdown_monitor]") {
  World world;
  WorkerSettings settings;
  settings.limits.attempts = 1;
  MemoryWorker a(world, 0, settings);
  MemoryWorker gone(world, 1);
  MemoryWorker there(world, 2);
  introduce(a, gone);
  a.links().addPeer(there.record());
  there.links().addPeer(a.record());
  there.start();
  connect(world, a, gone);
  connect(world, a, there);
  loseLinks(world, a, 2);
  world.network.refuseDials(gone.record().address, 1);
  const ShutdownMonitor monitor(a.links(), 0, kNone);
  monitor.check();
  // The dial of the one has failed before that of the other comes through.
  while (a.losses().size() < 3) {
    REQUIRE(world.network.deliverOne());
  }
  REQUIRE(a.stateOf(there) == PeerState::dialing);
  world.network.deliverAll();
  REQUIRE(a.stateOf(there) == PeerState::connected);
  CHECK_THROWS_AS(monitor.check(), std::runtime_error);
}
