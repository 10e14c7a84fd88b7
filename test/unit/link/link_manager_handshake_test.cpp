// Whom a worker lets in, and how it turns others away.
#include <catch2/catch.hpp>
#include <optional>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

namespace {

// The error of a send from a to b, who say hello as the settings want.
std::string refusalOf(World& world, MemoryWorker& a, MemoryWorker& b) {
  const CallbackNote& note = a.send(b, "let me in");
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::refused);
  CHECK(world.network.dials() == 1); // a refusal is final
  CHECK(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::idle; }));
  CHECK(b.arrivals().empty());
  CHECK(world.network.openLinks() == 0);
  return note.error().message();
}

} // namespace

TEST_CASE("a worker with another torch is refused", "[link_manager]") {
  World world;
  WorkerSettings settings;
  settings.torchVersion = "2.12.0";
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1);
  introduce(a, b);
  CHECK(
      refusalOf(world, a, b) ==
      "worker 'w1' (rank 1) refused the connection: it runs torch 2.11.0, not 2.12.0: install the "
      "same torch on both");
}

TEST_CASE("a worker of another group is refused", "[link_manager]") {
  World world;
  WorkerSettings settings;
  settings.groupId = 78;
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1);
  introduce(a, b);
  CHECK_THAT(refusalOf(world, a, b), Catch::Contains("it belongs to another RPC group"));
}

TEST_CASE("a worker at whose address another one of its rank answers is dead", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  WorkerRecord earlier = b.record();
  earlier.incarnation -= 1;
  a.links().addPeer(earlier);
  b.links().addPeer(a.record());
  a.start();
  b.start();
  const CallbackNote& note = a.send(b, "let me in");
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::workerDied);
  CHECK_THAT(
      note.error().message(),
      Catch::Contains("has died: another process of its rank answers at its address"));
  CHECK(world.network.dials() == 2); // the first hello could have been damaged on the way
  CHECK(a.stateOf(b) == PeerState::dead);
  CHECK(b.arrivals().empty());
}

TEST_CASE("a worker that a static group does not know is refused", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  a.links().addPeer(b.record());
  a.start();
  b.start();
  CHECK(
      refusalOf(world, a, b) ==
      "worker 'w1' (rank 1) refused the connection: it knows no worker 'w0' (rank 0)");
}

TEST_CASE(
    "another incarnation of a worker that a static group knows is refused", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  WorkerRecord earlier = a.record();
  earlier.incarnation -= 1;
  a.links().addPeer(b.record());
  b.links().addPeer(earlier);
  a.start();
  b.start();
  CHECK_THAT(refusalOf(world, a, b), Catch::Contains("it knows no worker 'w0' (rank 0)"));
}

TEST_CASE("a hello of another protocol is refused in words that both can read", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  b.start();
  Hello hello = helloOf(recordOf(0), b);
  hello.self.protocolVersion = kProtocolVersion + 1;
  OutgoingFrame frame = hello.encode(FrameKind::hello);
  frame.head.resize(
      FrameHeader::kShortSize + 2 * sizeof(uint32_t)); // the rest is another version's
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(std::move(frame));
  world.network.deliverAll();
  CHECK(world.network.openLinks() == 1);
  REQUIRE(peer.heard() == std::vector{FrameKind::refuse});
  CHECK_THAT(
      Refusal::decode(peer.lastFrame()).reason, Catch::Contains("it speaks torchwire protocol"));
}

TEST_CASE("a refusal reaches its reader before the link ends", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker b(world, 1);
  b.start();
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  REQUIRE(world.network.deliverUntil([&] { return peer.heard().size() == 1; }));
  CHECK(peer.heard().front() == FrameKind::refuse);
  CHECK_FALSE(peer.error());
  peer.close();
  CHECK(world.network.deliverUntil([&] { return world.network.openLinks() == 0; }));
}

TEST_CASE("a refused peer that goes on talking is cut off", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  b.start();
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  peer.say(textFrame("let me in anyway"));
  world.network.deliverAll();
  CHECK(peer.heard() == std::vector{FrameKind::refuse});
  CHECK(peer.error());
  CHECK(b.arrivals().empty());
}

TEST_CASE("a worker with which no transport is shared is refused", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  b.start();
  Hello hello = helloOf(recordOf(0), b);
  hello.offer = MemoryNetwork::kNothingInCommon;
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(hello.encode(FrameKind::hello));
  world.network.deliverAll();
  REQUIRE(peer.heard() == std::vector{FrameKind::refuse});
  CHECK_THAT(
      Refusal::decode(peer.lastFrame()).reason, Catch::Contains("it has no transport in common"));
  CHECK(b.links().status().front().state == PeerState::idle);
}

TEST_CASE("a dynamic group asks whether an unknown peer may join", "[link_manager]") {
  World world;
  std::vector<std::string> asked;
  std::optional<Refusal> answer;
  WorkerSettings settings;
  settings.unknownPeer = [&](const Hello& hello) {
    asked.push_back(hello.self.name);
    return answer;
  };
  MemoryWorker b(world, 1, settings);
  MemoryWorker a(world, 0);
  a.links().addPeer(b.record());
  a.start();
  b.start();
  SECTION("and lets it in") {
    a.send(b, "hello");
    world.network.deliverAll();
    CHECK(b.texts() == Texts{"hello"});
    b.send(a, "hello yourself");
    world.network.deliverAll();
    CHECK(a.texts() == Texts{"hello yourself"});
    CHECK(world.network.dials() == 1);
  }
  SECTION("and turns it away") {
    answer = Refusal{ErrorCode::refused, "the group is full"};
    CHECK_THAT(refusalOf(world, a, b), Catch::Contains("the group is full"));
    CHECK(b.links().status().empty());
  }
  CHECK(asked == Texts{"w0"});
}

TEST_CASE("a dynamic group takes a worker's new incarnation for the old one", "[link_manager]") {
  World world;
  WorkerSettings settings;
  settings.unknownPeer = [](const Hello&) { return std::nullopt; };
  MemoryWorker b(world, 1, settings);
  MemoryWorker earlier(world, 0);
  introduce(earlier, b);
  earlier.send(b, "from the old one");
  world.network.deliverAll();

  WorkerSettings anew;
  anew.incarnation = 9999;
  anew.address = "memory://w0-restarted";
  MemoryWorker restarted(world, 0, anew);
  restarted.links().addPeer(b.record());
  restarted.start();
  const CallbackNote& note = restarted.send(b, "from the new one");
  earlier.context().join(); // its links end, as those of a process
  REQUIRE(world.network.deliverUntil([&] { return note.called() && b.texts().size() == 2; }));
  CHECK(b.texts() == Texts{"from the old one", "from the new one"});
  CHECK(b.statusOf(restarted).record.incarnation == 9999);
  CHECK(b.losses().size() == 1);
  b.send(restarted, "to the new one");
  world.network.deliverAll();
  CHECK(restarted.texts() == Texts{"to the new one"});
  CHECK(earlier.texts().empty());
}

TEST_CASE("a hello that comes before the group is known waits for it", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  a.links().addPeer(b.record());
  a.start();
  const CallbackNote& note = a.send(b, "early");
  world.network.deliverAll();
  CHECK_FALSE(note.called());
  b.links().addPeer(a.record());
  b.start();
  world.network.deliverAll();
  CHECK(note.succeeded());
  CHECK(b.texts() == Texts{"early"});
}

TEST_CASE("an early hello whose sender has given up harms nobody", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  world.network.deliverAll();
  peer.close();
  world.network.deliverAll();
  b.links().addPeer(recordOf(0));
  b.start();
  world.network.deliverAll();
  CHECK(b.links().status().front().state == PeerState::idle);
  CHECK(world.network.openLinks() == 0);
}

TEST_CASE("a link on which nothing is said is closed", "[link_manager]") {
  World world;
  WorkerSettings settings;
  settings.limits.handshake = milliseconds(3);
  MemoryWorker b(world, 1, settings);
  b.start();
  RawPeer silent = RawPeer::dial(world, b);
  CHECK(world.network.deliverUntil([&] { return static_cast<bool>(silent.error()); }));
  CHECK(silent.heard().empty());
  CHECK(b.losses().empty());
}

TEST_CASE("a link that says something else than hello is closed", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  b.start();
  RawPeer peer = RawPeer::dial(world, b);
  SECTION("a request") {
    peer.say(textFrame("no hello"));
  }
  SECTION("an empty frame") {
    peer.say(OutgoingFrame());
  }
  SECTION("garbage") {
    OutgoingFrame garbage;
    garbage.head.assign(100, '\xff');
    peer.say(std::move(garbage));
  }
  SECTION("a hello cut short") {
    OutgoingFrame hello = helloOf(recordOf(0), b).encode(FrameKind::hello);
    hello.head.resize(hello.head.size() - 8);
    peer.say(std::move(hello));
  }
  SECTION("a welcome") {
    peer.say(helloOf(recordOf(0), b).encode(FrameKind::welcome));
  }
  world.network.deliverAll();
  CHECK(peer.error());
  CHECK(peer.heard().empty());
  CHECK(b.losses().empty());
}

TEST_CASE(
    "a hello with an offer that cannot be read is turned away without a trace", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  Hello hello = helloOf(a.record(), b);
  hello.offer = {'?'};
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(hello.encode(FrameKind::hello));
  world.network.deliverAll();
  CHECK(peer.error());
  CHECK(b.stateOf(a) == PeerState::idle);
  b.send(a, "still works");
  world.network.deliverAll();
  CHECK(a.texts() == Texts{"still works"});
}

TEST_CASE(
    "an early hello with an offer that cannot be read does not stop the group", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  Hello hello = helloOf(recordOf(0), b);
  hello.offer = {'?'};
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(hello.encode(FrameKind::hello));
  world.network.deliverAll();
  b.links().addPeer(recordOf(0));
  CHECK_NOTHROW(b.start());
}
