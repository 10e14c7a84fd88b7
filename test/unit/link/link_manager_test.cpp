// What a connected link carries, and what happens when it breaks.
#include "backend/link/link_manager.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <optional>

#include "test/unit/support/memory_worker.h"
#include "test/unit/support/simulated_faulty_link.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

namespace {

// Two workers with a link between them, dialed by a.
struct ConnectedPair {
  explicit ConnectedPair(Style style, WorkerSettings ofA = {}, WorkerSettings ofB = {})
      : world(style), a(world, 0, std::move(ofA)), b(world, 1, std::move(ofB)) {
    introduce(a, b);
    const CallbackNote& note = a.connect(b);
    REQUIRE(world.network.deliverUntil(
        [&] { return note.succeeded() && b.stateOf(a) == PeerState::connected; }));
  }

  template <typename Condition>
  bool until(Condition holds) {
    return world.network.deliverUntil(holds);
  }

  bool isIdle() const {
    return a.stateOf(b) == PeerState::idle && b.stateOf(a) == PeerState::idle;
  }

  World world;
  MemoryWorker a;
  MemoryWorker b;
};

// A worker b that has a link to rank 0, played by the test, which dials once more.
struct Redial {
  static constexpr uint64_t kFirstLink = 11;

  explicit Redial(Style style, WorkerSettings ofB = {})
      : world(style), b(world, 1, std::move(ofB)), first(RawPeer::dial(world, b)) {
    b.links().addPeer(recordOf(0));
    b.start();
    sayHello(first, kFirstLink, 0);
    REQUIRE(world.network.deliverUntil([this] { return !first.heard().empty(); }));
  }

  // A hello on another link, from a peer whose last link was this one.
  RawPeer dialAgain(uint64_t lastLink) {
    RawPeer again = RawPeer::dial(world, b);
    sayHello(again, 12, lastLink);
    return again;
  }
  void sayHello(RawPeer& peer, uint64_t link, uint64_t lastLink) const {
    Hello hello = helloOf(recordOf(0), b);
    hello.linkId = link;
    hello.lastLinkId = lastLink;
    peer.say(hello.encode(FrameKind::hello));
  }

  World world;
  MemoryWorker b;
  RawPeer first;
};

} // namespace

TEST_CASE("frames on a link arrive in the order of their sends", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  ConnectedPair pair(style);
  for (const char* text : {"1", "2", "3"}) {
    pair.a.send(pair.b, text);
  }
  pair.b.send(pair.a, "back");
  CHECK(pair.until([&] { return pair.b.arrivals().size() == 3 && pair.a.arrivals().size() == 1; }));
  CHECK(pair.b.texts() == Texts{"1", "2", "3"});
  CHECK(pair.b.arrivals().front().from == 0);
  CHECK(pair.a.texts() == Texts{"back"});
  CHECK(pair.until([&] { return pair.world.ledger.allCalled(); }));
  CHECK(pair.world.network.dials() == 1);
}

TEST_CASE("a handler of a frame may send at once", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  std::function<void()> answer;
  WorkerSettings ofB;
  ofB.onFrame = [&](const std::string&) { answer(); };
  ConnectedPair pair(style, {}, ofB);
  answer = [&] { pair.b.send(pair.a, "response"); };
  pair.a.send(pair.b, "request");
  CHECK(pair.until([&] { return pair.a.texts() == Texts{"response"}; }));
}

TEST_CASE("both sides count what went over a link", "[link_manager]") {
  ConnectedPair pair(Style::pumped);
  OutgoingFrame response = bareFrame(FrameKind::response);
  pair.a.send(pair.b, "12345");
  pair.a.send(pair.b, "");
  pair.b.links().sendIfConnected(0, std::move(response), pair.world.ledger.expect("response"));
  pair.world.network.deliverAll();
  const PeerStatus caller = pair.a.statusOf(pair.b);
  const PeerStatus callee = pair.b.statusOf(pair.a);
  CHECK(caller.state == PeerState::connected);
  CHECK(caller.record.name == "w1");
  CHECK(caller.link.transport == "memory");
  CHECK(caller.traffic.calls == 2);
  CHECK(caller.traffic.framesSent == 2);
  CHECK(caller.traffic.bytesSent() == 2 * FrameHeader::kSize + 5);
  REQUIRE(caller.traffic.carried().size() == 1);
  CHECK(caller.traffic.carried()[0].transport == "memory");
  CHECK(caller.traffic.carried()[0].sent == caller.traffic.bytesSent());
  CHECK(caller.traffic.carried()[0].received == caller.traffic.bytesReceived());
  CHECK(callee.link.transport == "memory");
  CHECK(callee.traffic.calls == 0);
  CHECK(callee.traffic.framesSent == 1);
  CHECK(callee.traffic.framesReceived == 2);
  CHECK(callee.traffic.bytesReceived() == 2 * FrameHeader::kSize + 5);
  CHECK(callee.traffic.linksLost == 0);
}

TEST_CASE("a goodbye counts for no frame", "[link_manager]") {
  ConnectedPair pair(Style::pumped);
  pair.a.links().leave(milliseconds(0));
  pair.world.network.deliverAll();
  CHECK(pair.a.statusOf(pair.b).traffic.framesSent == 0);
  CHECK(pair.b.statusOf(pair.a).traffic.framesReceived == 0);
}

TEST_CASE("a link that was only connected has carried no frame", "[link_manager]") {
  ConnectedPair pair(Style::pumped);
  CHECK(pair.a.statusOf(pair.b).traffic.framesSent == 0);
  pair.a.send(pair.b, "one");
  CHECK(pair.a.statusOf(pair.b).traffic.framesSent == 1);
}

TEST_CASE("a link that breaks is reported once on each side", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  ConnectedPair pair(style);
  pair.world.network.cut();
  CHECK(pair.until([&] { return pair.isIdle(); }));
  REQUIRE(pair.a.losses().size() == 1);
  CHECK(pair.b.losses().size() == 1);
  CHECK(pair.a.losses()[0].peer == 1);
  CHECK(pair.a.losses()[0].error.code() == ErrorCode::linkBroken);
  CHECK(
      pair.a.losses()[0].error.message() ==
      "lost the connection to worker 'w1' (rank 1) at memory://w1 (the network was cut): its "
      "process may have ended, see its log");
  CHECK(pair.a.statusOf(pair.b).traffic.linksLost == 1);
}

TEST_CASE("the next send after a loss dials anew", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  ConnectedPair pair(style);
  pair.world.network.cut();
  REQUIRE(pair.until([&] { return pair.isIdle(); }));
  const CallbackNote& note = pair.b.send(pair.a, "again");
  CHECK(pair.until([&] { return pair.a.texts() == Texts{"again"} && note.called(); }));
  CHECK(note.succeeded());
  CHECK(pair.world.network.dials() == 2);
}

TEST_CASE("a side that missed the break takes the other's new dial", "[link_manager]") {
  Redial redial(Style::pumped);
  RawPeer again = redial.dialAgain(redial.kFirstLink);
  CHECK(redial.world.network.deliverUntil([&] { return !again.heard().empty(); }));
  CHECK(again.heard() == std::vector{FrameKind::welcome});
  REQUIRE(redial.b.losses().size() == 1);
  CHECK_THAT(redial.b.losses()[0].error.message(), Catch::Contains("it dialed anew"));
  const PeerStatus status = redial.b.links().status().front();
  CHECK(status.state == PeerState::connected);
  CHECK(status.traffic.linksLost == 1);
  CHECK(redial.first.error());
}

TEST_CASE("a dial that does not know of the present link does not replace it", "[link_manager]") {
  Redial redial(Style::pumped);
  RawPeer stale = redial.dialAgain(0);
  redial.world.network.deliverAll();
  CHECK(stale.heard() == std::vector{FrameKind::refuse});
  CHECK(Refusal::decode(stale.lastFrame()).code == ErrorCode::duplicateLink);
  CHECK(redial.b.losses().empty());
  redial.first.say(textFrame("still here"));
  redial.world.network.deliverAll();
  CHECK(redial.b.texts() == Texts{"still here"});
}

TEST_CASE("a send made while a loss is reported fails like those before it", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  std::function<void()> resend;
  std::atomic<int> losses{0};
  WorkerSettings ofB;
  ofB.onLost = [&](const Error&) {
    if (++losses == 1) {
      resend();
    }
  };
  Redial redial(style, ofB);
  CallbackNote& note = redial.world.ledger.note("the send");
  resend = [&] { redial.b.links().send(0, textFrame("too early"), CallbackLedger::expect(note)); };
  RawPeer again = redial.dialAgain(redial.kFirstLink);
  REQUIRE(redial.world.network.deliverUntil([&] { return again.heard().size() == 1; }));
  CHECK(again.heard() == std::vector{FrameKind::welcome}); // and nothing overtook it
  REQUIRE(redial.world.network.deliverUntil([&] { return note.called(); }));
  CHECK(note.error().code() == ErrorCode::linkBroken);
}

TEST_CASE("whoever hears that its call was lost may send anew at once", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  std::function<void()> resend;
  std::atomic<int> failures{0};
  std::atomic<bool> failedAtOnce{true};
  std::atomic<bool> resent{false};
  WorkerSettings ofB;
  ofB.onCallsFailed = [&] {
    if (++failures == 1) {
      resend();
    }
  };
  Redial redial(style, ofB);
  CallbackNote& note = redial.world.ledger.note("the send");
  resend = [&] {
    redial.b.links().send(0, textFrame("at once"), CallbackLedger::expect(note));
    failedAtOnce = note.called();
    resent = true;
  };
  redial.first.close();
  REQUIRE(redial.world.network.deliverUntil([&] { return resent.load(); }));
  CHECK_FALSE(failedAtOnce); // a dial is under way
  REQUIRE(redial.world.network.deliverUntil([&] { return note.called(); }));
}

TEST_CASE(
    "a new dial that comes while its peer's loss is reported has to try again", "[link_manager]") {
  std::function<void()> dialAgain;
  std::atomic<int> losses{0};
  WorkerSettings ofB;
  ofB.onLost = [&](const Error&) {
    if (++losses == 1) {
      dialAgain();
    }
  };
  Redial redial(Style::pumped, ofB);
  std::optional<RawPeer> again;
  dialAgain = [&] {
    again = redial.dialAgain(redial.kFirstLink);
    redial.world.network.deliverAll();
  };
  redial.first.close();
  redial.world.network.deliverAll();
  REQUIRE(again);
  CHECK(
      again->heard() ==
      std::vector{FrameKind::refuse}); // until the calls on the old link have failed
  CHECK(losses == 1);
  CHECK(redial.b.links().status().front().traffic.linksLost == 1);
  RawPeer third = redial.dialAgain(redial.kFirstLink);
  redial.world.network.deliverAll();
  CHECK(third.heard() == std::vector{FrameKind::welcome});
  CHECK(losses == 1);
  CHECK(redial.b.links().status().front().state == PeerState::connected);
}

TEST_CASE(
    "connecting while a loss is reported does not take the lost link for one", "[link_manager]") {
  std::function<void()> connect;
  std::atomic<int> losses{0};
  WorkerSettings ofB;
  ofB.onLost = [&](const Error&) {
    if (++losses == 1) {
      connect();
    }
  };
  Redial redial(Style::pumped, ofB);
  bool claimedSuccess = false;
  connect = [&] {
    CallbackNote& note = redial.world.ledger.note("the connect");
    redial.b.links().connect(0, CallbackLedger::expect(note));
    claimedSuccess = note.succeeded();
  };
  redial.first.close();
  redial.world.network.deliverAll();
  CHECK_FALSE(claimedSuccess);
}

TEST_CASE(
    "a frame sent by another thread while a hello is answered follows the welcome",
    "[link_manager]") {
  for (int round = 0; round < 100; ++round) {
    std::atomic<bool> sent{false}; // outlives the world, whose callbacks set it
    World world(Style::threaded);
    MemoryWorker a(world, 0);
    MemoryWorker b(world, 1);
    introduce(a, b);
    std::thread responder([&] { // as a handler does that answers a request of an earlier link
      while (!sent) {
        b.links().sendIfConnected(0, textFrame("response"), [&](const Error& error) {
          if (!error) {
            sent = true;
          }
        });
      }
    });
    const CallbackNote& connected = a.connect(b);
    CHECK(world.ledger.waitForAll());
    CHECK(connected.error().message() == "");
    sent = true;
    responder.join();
    if (connected.error()) {
      break;
    }
  }
}

TEST_CASE(
    "frames that came together are handled in their order, the goodbye last", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  for (const char* text : {"1", "2", "3"}) { // all come before b answers the hello
    peer.say(textFrame(text));
  }
  peer.say(bareFrame(FrameKind::goodbye));
  world.network.deliverUntil([] { return true; });
  b.start();
  REQUIRE(world.network.deliverUntil([&] { return !b.losses().empty(); }));
  CHECK(b.losses()[0].error.code() == ErrorCode::peerLeft);
  CHECK(b.texts() == Texts{"1", "2", "3"});
}

TEST_CASE("frames that came before the end of a link are handled before it", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  peer.say(textFrame("last words"));
  peer.close();
  world.network.deliverUntil([] { return true; });
  b.start();
  REQUIRE(world.network.deliverUntil([&] { return !b.losses().empty(); }));
  CHECK(b.losses()[0].error.code() == ErrorCode::linkBroken);
  CHECK(b.texts() == Texts{"last words"});
}

TEST_CASE("a response is sent only on a link that is there", "[link_manager]") {
  ConnectedPair pair(Style::pumped);
  CHECK(pair.a.sendIfConnected(pair.b, "response").succeeded());
  pair.world.network.deliverAll();
  CHECK(pair.b.texts() == Texts{"response"});

  pair.world.network.cut();
  pair.world.network.deliverAll();
  const CallbackNote& late = pair.a.sendIfConnected(pair.b, "late response");
  CHECK(late.error().message() == "the link on which the request came is gone");
  CHECK(pair.world.network.dials() == 1);
}

TEST_CASE("a frame that breaks the protocol costs its sender the link", "[link_manager]") {
  World world;
  MemoryWorker b(world, 1);
  b.links().addPeer(recordOf(0));
  b.start();
  RawPeer peer = RawPeer::dial(world, b);
  peer.say(helloOf(recordOf(0), b).encode(FrameKind::hello));
  world.network.deliverAll();
  REQUIRE(peer.heard() == std::vector{FrameKind::welcome});

  OutgoingFrame breach;
  SECTION("a frame of unknown kind") {
    breach = bareFrame(FrameKind::request);
    breach.head[0] = 99;
  }
  SECTION("a frame shorter than a header") {
    breach.head = {4};
  }
  SECTION("an empty frame") {}
  SECTION("a second hello") {
    breach = helloOf(recordOf(0), b).encode(FrameKind::hello);
  }
  SECTION("a welcome that nobody waits for") {
    breach = helloOf(recordOf(0), b).encode(FrameKind::welcome);
  }
  peer.say(std::move(breach));
  world.network.deliverAll();
  CHECK(peer.error());
  REQUIRE(b.losses().size() == 1);
  CHECK(b.losses()[0].error.code() == ErrorCode::linkBroken);
  CHECK_THAT(
      b.losses()[0].error.message(),
      Catch::Contains("at memory://w0: a frame broke the protocol: "));
  CHECK(b.arrivals().empty());
}

TEST_CASE("whoever breaks the protocol is told why before the link closes", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  const bool peerCloses = GENERATE(true, false);
  WorkerSettings settings;
  settings.limits.refusedGrace = milliseconds(peerCloses ? 3600 * 1000 : 20);
  Redial redial(style, settings);
  redial.first.say(bareFrame(FrameKind::welcome));
  redial.first.say(textFrame("too late"));
  const auto deliver = [&](auto holds) { return redial.world.network.deliverUntil(holds); };
  REQUIRE(deliver([&] { return redial.first.heard().size() == 2; }));
  CHECK(redial.first.heard() == std::vector{FrameKind::welcome, FrameKind::refuse});
  const Refusal refusal = Refusal::decode(redial.first.lastFrame());
  CHECK(refusal.code == ErrorCode::refused);
  CHECK(refusal.reason == "a frame broke the protocol: a second handshake");
  REQUIRE(deliver([&] { return redial.b.losses().size() == 1; }));
  CHECK(deliver([&] { return redial.b.links().status().front().state == PeerState::idle; }));
  CHECK(redial.b.links().status().front().state == PeerState::idle);
  if (peerCloses) {
    CHECK_FALSE(redial.first.error()); // it has its time to read the reason
    redial.first.close();
  }
  CHECK(deliver([&] { return redial.world.network.openLinks() == 0; }));
  CHECK(deliver([&] { return static_cast<bool>(redial.first.error()); }));
  CHECK(redial.b.texts().empty());
}

TEST_CASE("a refusal ends a connected link with its reason, unanswered", "[link_manager]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  WorkerSettings settings;
  settings.limits.refusedGrace = milliseconds(3600 * 1000);
  Redial redial(style, settings);
  redial.first.say(Refusal{ErrorCode::refused, "it was damaged"}.encode());
  redial.first.say(textFrame("too late"));
  REQUIRE(
      redial.world.network.deliverUntil([&] { return static_cast<bool>(redial.first.error()); }));
  CHECK(redial.first.heard() == std::vector{FrameKind::welcome});
  REQUIRE(redial.b.losses().size() == 1);
  CHECK(redial.b.losses()[0].error.code() == ErrorCode::linkBroken);
  CHECK(
      redial.b.losses()[0].error.message() ==
      "lost the connection to worker 'w0' (rank 0) at memory://w0: it closed the link: it was "
      "damaged");
  CHECK(redial.b.texts().empty());
}

TEST_CASE("sends that fail on a breaking link all say so", "[link_manager]") {
  World world;
  SimulatedFaultyContext faulty(
      world.network.context("memory://w0"), world.timer, {.breakAfter = 3}); // one is the hello
  WorkerSettings settings;
  settings.context = &faulty;
  MemoryWorker a(world, 0, settings);
  MemoryWorker b(world, 1);
  introduce(a, b);
  std::vector<CallbackNote*> notes;
  for (int i = 1; i <= 5; ++i) {
    notes.push_back(&a.send(b, std::to_string(i)));
  }
  REQUIRE(world.network.deliverUntil([&] { return world.ledger.allCalled(); }));
  CHECK(notes[1]->succeeded());
  for (int i = 2; i < 5; ++i) {
    CHECK(notes[static_cast<size_t>(i)]->error().code() == ErrorCode::linkBroken);
    CHECK_THAT(
        notes[static_cast<size_t>(i)]->error().message(),
        Catch::Matchers::Contains("worker 'w1' (rank 1)"));
  }
  REQUIRE(world.network.deliverUntil([&] { return b.losses().size() == 1; }));
  CHECK(b.texts() == Texts{"1", "2"});
  CHECK(a.losses().size() == 1);
}
