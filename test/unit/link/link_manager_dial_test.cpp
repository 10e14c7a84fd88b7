// From the first send to a link, or to the error that says why there is none.
#include <atomic>
#include <catch2/catch.hpp>
#include <optional>
#include <thread>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

TEST_CASE("the first send dials", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  CHECK(a.stateOf(b) == PeerState::idle);
  const CallbackNote& note = a.send(b, "hello");
  REQUIRE(world.network.deliverUntil([&] { return note.called() && b.arrivals().size() == 1; }));
  CHECK(note.succeeded());
  CHECK(b.texts() == Texts{"hello"});
  CHECK(a.stateOf(b) == PeerState::connected);
  CHECK(b.stateOf(a) == PeerState::connected);
  CHECK(world.network.dials() == 1);
  CHECK(a.losses().empty());
}

TEST_CASE("sends queue up behind a dial, in order", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  for (const char* text : {"1", "2", "3"}) {
    CHECK_FALSE(a.send(b, text).called());
  }
  CHECK(a.stateOf(b) == PeerState::dialing);
  world.network.deliverAll();
  CHECK(b.texts() == Texts{"1", "2", "3"});
  CHECK(world.network.dials() == 1);
  CHECK(a.statusOf(b).traffic.framesSent == 3);
}

TEST_CASE("a peer that was dialed sends on the same link", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  a.send(b, "there");
  world.network.deliverAll();
  b.send(a, "and back");
  world.network.deliverAll();
  CHECK(a.texts() == Texts{"and back"});
  CHECK(world.network.dials() == 1);
}

TEST_CASE("connecting sends no frame", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  const CallbackNote& first = a.connect(b);
  REQUIRE(world.network.deliverUntil([&] { return first.called(); }));
  CHECK(first.succeeded());
  CHECK(a.connect(b).succeeded()); // at once
  a.send(b, "only this");
  REQUIRE(world.network.deliverUntil([&] { return !b.arrivals().empty(); }));
  CHECK(b.texts() == Texts{"only this"});
  CHECK(b.losses().empty());
}

TEST_CASE("connecting from many threads sends no frame either", "[link_manager]") {
  for (int round = 0; round < 20; ++round) {
    World world(Style::threaded);
    MemoryWorker a(world, 0);
    MemoryWorker b(world, 1);
    introduce(a, b);
    std::atomic<int> called{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) {
          a.links().connect(1, [&](const Error&) { ++called; });
        }
      });
    }
    b.send(a, "frame"); // its hello comes in the midst of them
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(world.ledger.waitForAll());
    CHECK(world.network.deliverUntil([&] { return called == 400; }));
    REQUIRE(b.losses().empty());
  }
}

TEST_CASE("a send to a rank that nobody has fails", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker unknown(world, 5);
  a.start();
  const CallbackNote& note = a.send(unknown, "hello?");
  CHECK(note.error().code() == ErrorCode::unreachable);
  CHECK(note.error().message() == "no worker of rank 5 is in the group");
  CHECK(note.error().executed() == Executed::no);
}

TEST_CASE("a dial that fails for a while is tried again", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  world.network.refuseDials(b.record().address, 3);
  const CallbackNote& note = a.send(b, "at last");
  REQUIRE(world.network.deliverUntil([&] { return note.called() && !b.arrivals().empty(); }));
  CHECK(note.succeeded());
  CHECK(world.network.dials() == 4);
  CHECK(a.losses().empty());
}

TEST_CASE("a peer that cannot be reached is named when the attempts are over", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  b.context().join();
  const CallbackNote& first = a.send(b, "1");
  const CallbackNote& second = a.send(b, "2");
  REQUIRE(world.network.deliverUntil([&] { return world.ledger.allCalled(); }));
  CHECK(first.error().code() == ErrorCode::nobodyListens);
  CHECK(
      first.error().message() ==
      "cannot reach worker 'w1' (rank 1) at memory://w1 (nobody listens at memory://w1): check "
      "that its process runs and that this host can connect to that address");
  CHECK(second.error().code() == ErrorCode::nobodyListens);
  CHECK(first.error().executed() == Executed::no);
  CHECK(second.error().executed() == Executed::no);
  REQUIRE(world.network.deliverUntil([&] { return a.losses().size() >= 1; }));
  CHECK(a.losses()[0].error.executed() == Executed::no); // nothing can be on its way
  CHECK(a.losses()[0].error.code() == ErrorCode::nobodyListens);
  CHECK(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::idle; }));
  CHECK(world.network.dials() >= 4);
}

TEST_CASE("a send made while failed attempts are reported fails with them", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  CallbackNote& note = world.ledger.note("the send");
  std::function<void()> resend;
  std::atomic<int> losses{0};
  WorkerSettings ofA;
  ofA.onLost = [&](const Error&) {
    if (++losses == 1) {
      resend();
    }
  };
  MemoryWorker a(world, 0, ofA);
  MemoryWorker b(world, 1);
  introduce(a, b);
  resend = [&] { a.links().send(1, textFrame("too early"), CallbackLedger::expect(note)); };
  world.network.refuseDials(b.record().address, 4);
  a.send(b, "in vain");
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(
      note.error().code() ==
      ErrorCode::unreachable); // else the end of the first would fail it on its way
  CHECK(note.error().executed() == Executed::no);
  REQUIRE(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::idle; }));
  const CallbackNote& afterwards = a.send(b, "once more");
  REQUIRE(world.network.deliverUntil([&] { return afterwards.called(); }));
  CHECK(afterwards.succeeded());
}

TEST_CASE("whoever hears that a dial has failed may try anew at once", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  CallbackNote& first = world.ledger.note("the first send");
  CallbackNote& second = world.ledger.note("the second send");
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  world.network.refuseDials(b.record().address, 4);
  a.links().send(1, textFrame("in vain"), [&](const Error& error) {
    first.add(error);
    a.links().send(1, textFrame("at once"), CallbackLedger::expect(second));
  });
  REQUIRE(world.network.deliverUntil([&] { return second.called(); }));
  CHECK(first.error().code() == ErrorCode::unreachable);
  CHECK(second.succeeded());
}

TEST_CASE("a send after failed attempts starts afresh", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  world.network.refuseDials(b.record().address, 6);
  const CallbackNote& first = a.send(b, "in vain");
  REQUIRE(world.network.deliverUntil([&] { return first.called(); }));
  CHECK(first.error().code() == ErrorCode::unreachable);
  CHECK(world.network.dials() == 4);
  REQUIRE(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::idle; }));
  const CallbackNote& second = a.send(b, "once more");
  REQUIRE(world.network.deliverUntil([&] { return second.called(); }));
  CHECK(second.succeeded());
  CHECK(world.network.dials() == 7);
}

TEST_CASE("a peer that takes the dial but never answers is given up", "[link_manager]") {
  World world;
  WorkerSettings settings;
  settings.limits.handshake = milliseconds(3);
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1);
  a.links().addPeer(b.record());
  a.start(); // b does not, so it lets hellos wait
  const CallbackNote& note = a.send(b, "anybody there?");
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::unreachable);
  CHECK_THAT(note.error().message(), Catch::Contains("it did not answer in time"));
  CHECK(world.network.dials() == 1);
  CHECK(world.network.deliverUntil([&] { return a.stateOf(b) == PeerState::idle; }));
}

TEST_CASE(
    "a hello waits until peers are accepted, also once the group is known", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  a.links().addPeer(b.record());
  a.start();
  b.links().setGroup(b.record(), WorkerSettings().groupId);
  const CallbackNote& note = a.send(b, "hello");
  world.network.deliverAll();
  CHECK_FALSE(note.called());
  b.links().addPeer(a.record());
  b.links().acceptPeers();
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.succeeded());
  CHECK(b.texts() == Texts{"hello"});
}

TEST_CASE("the deadline of a dial that succeeded does its link no harm", "[link_manager]") {
  World world;
  WorkerSettings settings;
  settings.limits.handshake = milliseconds(5);
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1, settings);
  introduce(a, b);
  const CallbackNote& first = a.send(b, "1");
  world.network.deliverAll();
  if (first.succeeded()) { // else the machine was too slow
    // By the time that this runs, both deadlines have come up too.
    world.timer.after(milliseconds(10), [sent = world.ledger.expect("later")] { sent(Error()); });
    REQUIRE(world.ledger.waitForAll());
    CHECK(a.send(b, "2").succeeded());
    world.network.deliverAll();
    CHECK(b.texts() == Texts{"1", "2"});
    CHECK(a.losses().empty());
  }
}

TEST_CASE("a peer that breaks the link instead of answering is dialed again", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  LinkContext& context = world.network.context("memory://w1");
  context.listen([](const std::shared_ptr<Link>& link) { link->close(); });
  a.links().addPeer(recordOf(1));
  a.start();
  CallbackNote& note = world.ledger.note("the send");
  a.links().send(1, textFrame("hello?"), CallbackLedger::expect(note));
  REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::unreachable);
  CHECK(world.network.dials() == 4);
}

TEST_CASE("an answer that is no handshake fails the dial for good", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  std::optional<OutgoingFrame> answer;
  SECTION("a request") {
    answer = textFrame("surprise");
  }
  SECTION("a frame of unknown kind") {
    answer = bareFrame(FrameKind::welcome);
    answer->head[0] = 77;
  }
  SECTION("a welcome cut short") {
    answer = helloOf(recordOf(1), a).encode(FrameKind::welcome);
    answer->head.resize(answer->head.size() - 8);
  }
  SECTION("a welcome of another incarnation") {
    WorkerRecord other = recordOf(1);
    other.incarnation += 1;
    answer = helloOf(other, a).encode(FrameKind::welcome);
  }
  SECTION("a welcome to another dial") {
    Hello welcome = helloOf(recordOf(1), a);
    welcome.linkId = 12345;
    answer = welcome.encode(FrameKind::welcome);
  }
  SECTION("a welcome of another protocol") {
    Hello welcome = helloOf(recordOf(1), a);
    welcome.self.protocolVersion += 1;
    answer = welcome.encode(FrameKind::welcome);
  }
  SECTION("a welcome with an offer that cannot be read") {
    Hello welcome = helloOf(recordOf(1), a);
    welcome.offer = {'?'};
    answer = welcome.encode(FrameKind::welcome);
  }
  SECTION("an empty frame") {
    answer = OutgoingFrame();
  }
  std::vector<RawPeer> accepted;
  world.network.context("memory://w1").listen([&](std::shared_ptr<Link> link) {
    accepted.emplace_back(world.ledger.notifier(), std::move(link));
    accepted.back().say(*answer);
  });
  a.links().addPeer(recordOf(1));
  a.start();
  CallbackNote& note = world.ledger.note("the send");
  a.links().send(1, textFrame("hello?"), CallbackLedger::expect(note));
  world.network.deliverAll();
  REQUIRE(note.called());
  CHECK(note.error().code() == ErrorCode::refused);
  CHECK_THAT(note.error().message(), Catch::Contains("no valid handshake"));
  CHECK(world.network.dials() == 1);
  CHECK(accepted.front().error());
}

TEST_CASE("an address that cannot be dialed fails the send for good", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  WorkerRecord peer = recordOf(1);
  peer.address = "pigeon://w1";
  a.links().addPeer(peer);
  a.start();
  CallbackNote& note = world.ledger.note("the send");
  a.links().send(1, textFrame("hello?"), CallbackLedger::expect(note));
  world.network.deliverAll();
  REQUIRE(note.called());
  CHECK(note.error().code() == ErrorCode::refused);
  CHECK_THAT(
      note.error().message(),
      Catch::Contains("its address cannot be dialed") && Catch::Contains("pigeon://w1"));
  CHECK(a.links().status().front().state == PeerState::idle);
}

TEST_CASE("a peer with which no transport is shared is of no use", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  std::vector<RawPeer> accepted;
  world.network.context("memory://w1").listen([&](std::shared_ptr<Link> link) {
    accepted.emplace_back(world.ledger.notifier(), std::move(link));
    Hello welcome = helloOf(recordOf(1), a);
    welcome.offer = MemoryNetwork::kNothingInCommon;
    accepted.back().say(welcome.encode(FrameKind::welcome));
  });
  a.links().addPeer(recordOf(1));
  a.start();
  CallbackNote& note = world.ledger.note("the send");
  a.links().send(1, textFrame("hello?"), CallbackLedger::expect(note));
  world.network.deliverAll();
  REQUIRE(note.called());
  CHECK(note.error().code() == ErrorCode::refused);
  CHECK_THAT(note.error().message(), Catch::Contains("it has no transport in common"));
  CHECK(accepted.front().error());
}

TEST_CASE("a peer's own hello ends the wait for the next attempt", "[link_manager]") {
  World world;
  WorkerSettings settings;
  settings.limits.retryDelay = milliseconds(1000); // longer than the test waits
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1);
  introduce(a, b);
  world.network.refuseDials(b.record().address, 1);
  const CallbackNote& note = a.send(b, "queued");
  world.network.deliverAll();
  CHECK_FALSE(note.called());
  b.send(a, "hello from the other side");
  world.network.deliverAll();
  CHECK(note.succeeded());
  CHECK(b.texts() == Texts{"queued"});
  CHECK(a.texts() == Texts{"hello from the other side"});
  CHECK(world.network.openLinks() == 1);
}

TEST_CASE("a new incarnation of a peer that left is dialed at its new address", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  a.links().markLeft(1);
  CHECK(a.send(b, "too late").error().code() == ErrorCode::peerLeft);

  WorkerSettings settings;
  settings.incarnation = 5555;
  settings.address = "memory://w1-restarted";
  MemoryWorker restarted(world, 1, settings);
  restarted.links().addPeer(a.record());
  restarted.start();
  a.links().addPeer(restarted.record());
  const CallbackNote& note = a.send(restarted, "welcome back");
  world.network.deliverAll();
  CHECK(note.succeeded());
  CHECK(restarted.texts() == Texts{"welcome back"});
  CHECK(b.texts().empty());
}

TEST_CASE(
    "a peer that was started anew loses the link and the sends of its former incarnation",
    "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  WorkerRecord restarted = b.record();
  restarted.incarnation = 5555;
  SECTION("while it is dialed") {
    const CallbackNote& note = a.send(b, "for the former one");
    a.links().addPeer(restarted);
    CHECK(note.error().code() == ErrorCode::workerDied);
    CHECK_THAT(note.error().message(), Catch::Contains("worker 'w1' (rank 1) was started anew"));
  }
  SECTION("when it is connected") {
    a.connect(b);
    world.network.deliverAll();
    a.links().addPeer(restarted);
    REQUIRE(a.losses().size() == 1);
    CHECK_THAT(a.losses()[0].error.message(), Catch::Contains("was started anew"));
  }
  world.network.deliverAll();
  CHECK(a.stateOf(b) == PeerState::idle);
  CHECK(world.network.openLinks() == 0);
  CHECK(b.arrivals().empty());
}

TEST_CASE("adding a peer again changes nothing", "[link_manager]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  a.send(b, "1");
  world.network.deliverAll();
  a.links().addPeer(b.record());
  a.send(b, "2");
  world.network.deliverAll();
  CHECK(b.texts() == Texts{"1", "2"});
  CHECK(world.network.dials() == 1);
  a.links().markLeft(1);
  a.links().addPeer(b.record()); // the same incarnation does not come back
  CHECK(a.send(b, "3").error().code() == ErrorCode::peerLeft);
}
