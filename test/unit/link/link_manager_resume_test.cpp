// What becomes of a session when its link breaks: it goes on on the next one, or ends.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using std::chrono::milliseconds;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

namespace {

constexpr milliseconds kLong{3600 * 1000};

WorkerSettings settingsOf(milliseconds sessionTimeout) {
  WorkerSettings settings;
  settings.limits = sessionLimits(sessionTimeout);
  return settings;
}

// Two workers with a session between them, dialed by a.
struct SessionPair {
  explicit SessionPair(
      Style style = Style::pumped, WorkerSettings ofA = settingsOf(kLong),
      WorkerSettings ofB = settingsOf(kLong))
      : world(style), a(world, 0, std::move(ofA)), b(world, 1, std::move(ofB)) {
    introduce(a, b);
    const CallbackNote& note = a.connect(b);
    REQUIRE(until([&] { return note.succeeded() && b.stateOf(a) == PeerState::connected; }));
  }

  template <typename Condition>
  bool until(Condition holds) {
    return world.network.deliverUntil(holds);
  }
  // A request with a call id.
  const CallbackNote& call(MemoryWorker& from, const MemoryWorker& to, uint64_t id) {
    CallbackNote& note = world.ledger.note("call " + std::to_string(id));
    OutgoingFrame frame = textFrame(std::to_string(id));
    setCallId(frame, id);
    from.links().send(to.record().id, std::move(frame), CallbackLedger::expect(note));
    return note;
  }

  World world;
  MemoryWorker a;
  MemoryWorker b;
};

// The test's own end of a session with a worker.
struct RawSession {
  explicit RawSession(WorkerSettings settings = settingsOf(kLong))
      : b(world, 1, std::move(settings)) {
    b.links().addPeer(recordOf(0));
    b.start();
  }

  RawPeer dial(const SessionClaim& claim, uint64_t lastLink = 0) {
    RawPeer peer = RawPeer::dial(world, b);
    Hello hello = helloOf(recordOf(0), b);
    hello.linkId = ++links;
    hello.lastLinkId = lastLink;
    hello.session = claim;
    peer.say(hello.encode(FrameKind::hello));
    world.network.deliverAll();
    return peer;
  }
  static OutgoingFrame numbered(
      const std::string& text, uint64_t sequence, uint64_t acknowledged = 0) {
    OutgoingFrame frame = textFrame(text);
    setSequence(frame, sequence, acknowledged);
    return frame;
  }
  bool until(const std::function<bool()>& holds) {
    return world.network.deliverUntil(holds);
  }

  World world;
  MemoryWorker b;
  uint64_t links = 0;
};

/// With the other worker of the two.
uint64_t linksLost(const MemoryWorker& worker) {
  return worker.links().status()[0].traffic.linksLost;
}

SessionClaim welcomedBy(const RawPeer& peer) {
  REQUIRE(peer.heard() == std::vector{FrameKind::welcome});
  return Hello::decode(peer.lastFrame()).session;
}

} // namespace

TEST_CASE("what was lost with a link comes on the next one, in order", "[link_manager_resume]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  SessionPair pair(style);
  for (const char* text : {"1", "2", "3"}) {
    CHECK(pair.a.send(pair.b, text).succeeded());
  }
  pair.world.network.cut();
  for (const char* text : {"4", "5"}) {
    pair.a.send(pair.b, text);
  }
  pair.b.send(pair.a, "back");
  CHECK(pair.until([&] { return pair.b.texts().size() == 5 && pair.a.texts().size() == 1; }));
  CHECK(pair.b.texts() == Texts{"1", "2", "3", "4", "5"});
  CHECK(pair.a.losses().empty());
  CHECK(pair.b.losses().empty());
  CHECK(pair.until([&] { return pair.world.ledger.allCalled(); }));
}

TEST_CASE(
    "each break of a link and each next link is told on both sides", "[link_manager_resume]") {
  const Style style = GENERATE(Style::pumped, Style::threaded);
  CAPTURE(nameOf(style));
  SessionPair pair(style);
  CHECK(pair.a.sessionTurns().empty());
  for (size_t cut = 1; cut <= 3; ++cut) {
    const size_t before = pair.a.sessionTurns().size();
    pair.world.network.cut();
    CHECK(pair.until([&] {
      const Texts turns = pair.a.sessionTurns();
      return turns.size() > before && turns.back() == "resumed" && pair.b.sessionTurns() == turns;
    }));
  }
  // Dials that cross may break a link once more than the network has.
  const Texts turns = pair.a.sessionTurns();
  for (size_t i = 0; i < turns.size(); ++i) {
    CHECK(turns[i] == (i % 2 == 0 ? "broken" : "resumed"));
  }
}

TEST_CASE("while a session has no link, what is sent waits", "[link_manager_resume]") {
  SessionPair pair;
  pair.a.send(pair.b, "q");
  pair.world.network.deliverAll();
  pair.world.network.refuseDials(pair.a.record().address, 1 << 20);
  pair.world.network.refuseDials(pair.b.record().address, 1 << 20);
  pair.world.network.cut();
  pair.world.network.deliverAll();
  CHECK(pair.a.stateOf(pair.b) == PeerState::resuming);
  CHECK(std::string(nameOf(PeerState::resuming)) == "resuming");
  const CallbackNote& request = pair.a.send(pair.b, "another");
  const CallbackNote& response = pair.b.sendIfConnected(pair.a, "r");
  pair.world.network.deliverAll();
  CHECK_FALSE(request.called());
  CHECK_FALSE(response.called());
  pair.world.network.refuseDials(pair.a.record().address, 0);
  pair.world.network.refuseDials(pair.b.record().address, 0);
  CHECK(pair.until([&] { return pair.b.texts() == Texts{"q", "another"}; }));
  CHECK(pair.until([&] { return pair.a.texts() == Texts{"r"}; }));
  CHECK(request.succeeded());
  CHECK(response.succeeded());
}

TEST_CASE("a session that finds no new link in time ends with its calls", "[link_manager_resume]") {
  SessionPair pair(Style::pumped, settingsOf(milliseconds(30)), settingsOf(kLong));
  pair.call(pair.a, pair.b, 1);
  REQUIRE(pair.until([&] { return pair.b.texts() == Texts{"1"}; }));
  pair.b.send(pair.a, "acknowledges the first");
  REQUIRE(pair.until([&] { return pair.a.texts().size() == 1; }));
  CHECK(pair.call(pair.a, pair.b, 2).succeeded()); // handed to the link, which loses it
  pair.world.network.refuseDials(pair.a.record().address, 1 << 20);
  pair.world.network.refuseDials(pair.b.record().address, 1 << 20);
  pair.world.network.cut();
  pair.world.network.deliverAll();
  const CallbackNote& third = pair.call(pair.a, pair.b, 3);
  REQUIRE(pair.until([&] { return third.called(); }));
  REQUIRE(pair.a.losses().size() == 1);
  const MemoryWorker::Loss loss = pair.a.losses()[0];
  CHECK(loss.error.code() == ErrorCode::silent);
  CHECK(
      loss.error.message() ==
      "lost the connection to worker 'w1' (rank 1) at memory://w1 (the network was cut): its "
      "process may have "
      "ended, see its log; it could not be resumed: no new connection within 30 ms");
  CHECK(loss.received == CallIds{1});
  CHECK(third.error().message() == loss.error.message());

  // The next call begins another session, and ends the one that b still waits for.
  pair.world.network.refuseDials(pair.a.record().address, 0);
  pair.world.network.refuseDials(pair.b.record().address, 0);
  CHECK(pair.until([&] { return pair.a.stateOf(pair.b) == PeerState::idle; }));
  pair.call(pair.a, pair.b, 4);
  CHECK(pair.until([&] { return pair.b.texts() == Texts{"1", "4"}; }));
  CHECK(pair.b.losses().size() == 1);
  CHECK_THAT(
      pair.b.losses()[0].error.message(),
      Catch::EndsWith("; it could not be resumed: it has given the session up") ||
          Catch::EndsWith("; it could not be resumed: the session has ended there"));
}

namespace {

// Frames that are noted when they are undone.
class Undone {
 public:
  OutgoingFrame frame(const std::string& text) const {
    OutgoingFrame frame = textFrame(text);
    frame.undo = Undo([noted = noted_, text] {
      MutexLock lock(noted->mutex);
      noted->texts.push_back(text);
    });
    return frame;
  }
  Texts texts() const {
    MutexLock lock(noted_->mutex);
    return noted_->texts;
  }

 private:
  struct Noted {
    Mutex mutex{LockRank::test};
    Texts texts GUARDED_BY(mutex);
  };
  const std::shared_ptr<Noted> noted_ = std::make_shared<Noted>(); // shared with the frames
};

} // namespace

TEST_CASE(
    "what a peer turns out not to have received of a session that has ended is undone",
    "[link_manager_resume]") {
  SessionPair pair(Style::pumped, settingsOf(milliseconds(30)), settingsOf(kLong));
  const Undone undone;
  const auto request = [&](const std::string& text) {
    pair.a.links().send(1, undone.frame(text), [](const Error&) {});
  };
  const auto response = [&](const std::string& text) {
    pair.b.links().sendIfConnected(0, undone.frame(text), [](const Error&) {});
  };
  request("received");
  REQUIRE(pair.until([&] { return pair.b.texts() == Texts{"received"}; }));
  request("lost request"); // with its link
  response("lost response");
  const auto refuseDials = [&](int count) {
    pair.world.network.refuseDials(pair.a.record().address, count);
    pair.world.network.refuseDials(pair.b.record().address, count);
  };
  refuseDials(1 << 20);
  pair.world.network.cut();
  REQUIRE(pair.until([&] { return pair.a.stateOf(pair.b) == PeerState::idle; }));
  CHECK(undone.texts().empty()); // nobody knows

  refuseDials(0);
  request("of the next session");
  REQUIRE(pair.until([&] { return pair.b.texts().size() == 2; }));
  CHECK(pair.b.texts() == Texts{"received", "of the next session"});
  REQUIRE(pair.until([&] { return undone.texts().size() == 2; }));
  Texts both = undone.texts();
  std::sort(both.begin(), both.end());
  CHECK(both == Texts{"lost request", "lost response"});
}

TEST_CASE("what has never been handed to a link is undone at once", "[link_manager_resume]") {
  RawSession raw(settingsOf(milliseconds(30)));
  const Undone undone;
  SECTION("a response to a peer without a link") {
    raw.b.links().sendIfConnected(0, undone.frame("response"), [](const Error&) {});
    CHECK(undone.texts() == Texts{"response"});
  }
  SECTION("what waits when the session ends") {
    RawPeer peer = raw.dial({1, false, {}, {}});
    raw.world.network.refuseDials(recordOf(0).address, 1 << 20);
    peer.close();
    raw.world.network.deliverAll();
    raw.b.links().sendIfConnected(0, undone.frame("waits"), [](const Error&) {});
    CHECK(raw.until([&] { return undone.texts() == Texts{"waits"}; }));
  }
}

TEST_CASE("what a peer says of the session before is believed", "[link_manager_resume]") {
  RawSession raw(settingsOf(milliseconds(30)));
  raw.world.network.refuseDials(recordOf(0).address, 1 << 20);
  const Undone undone;
  RawPeer first = raw.dial({5, false, {}, {4, {9, {}}}});
  first.say(RawSession::numbered("request", 1));
  for (const char* text : {"1", "2", "3"}) {
    raw.b.links().send(0, undone.frame(text), [](const Error&) {});
  }
  raw.world.network.deliverAll();
  first.close();
  const auto isIdle = [&] { return raw.b.links().status()[0].state == PeerState::idle; };
  REQUIRE(raw.until(isIdle));
  SECTION("of a hello what it says") {
    const auto [former, expected] = GENERATE(
        std::pair{FormerSession{5, {0, {}}}, Texts{"1", "2", "3"}},
        std::pair{FormerSession{5, {1, {{3, 3}}}}, Texts{"2"}},
        std::pair{FormerSession{5, {3, {}}}, Texts{}},
        std::pair{FormerSession{6, {0, {}}}, Texts{}}); // it has forgotten
    RawPeer second = raw.dial({7, false, {}, former});
    const FormerSession told = welcomedBy(second).former;
    CHECK(told.id == 5);
    CHECK(told.received == Receipts{1, {}});
    CHECK(undone.texts() == expected);
  }
  SECTION("and what it does not say once a frame has followed") {
    RawPeer second = raw.dial({7, false, {}, {4, {9, {}}}});
    CHECK(undone.texts().empty());
    second.say(RawSession::numbered("another", 1));
    raw.world.network.deliverAll();
    CHECK(undone.texts() == Texts{"1", "2", "3"});
  }
  SECTION("but no hello of before that session, which comes late") {
    RawPeer late = raw.dial({5, false, {}, {4, {9, {}}}});
    CHECK(late.heard() == std::vector{FrameKind::welcome}); // which nobody waits for
    late.close();
    raw.world.network.deliverAll();
    REQUIRE(raw.until(isIdle));
    RawPeer third = raw.dial({7, false, {}, {5, {2, {}}}});
    CHECK(welcomedBy(third).former.id == 5);
    CHECK(undone.texts() == Texts{"3"});
  }
}

TEST_CASE("a session that its peer has forgotten is refused", "[link_manager_resume]") {
  RawSession raw;
  RawPeer peer = raw.dial({1, true, {5, {}}, {}});
  REQUIRE(peer.heard() == std::vector{FrameKind::refuse});
  const Refusal refusal = Refusal::decode(peer.lastFrame());
  CHECK(refusal.code == ErrorCode::sessionUnknown);
  CHECK(refusal.reason == "the session has ended there");
}

TEST_CASE(
    "a session whose ends do not agree on what has come is given up", "[link_manager_resume]") {
  RawSession raw;
  RawPeer first = raw.dial({1, false, {}, {}});
  CHECK(welcomedBy(first).id == 1);
  first.close();
  raw.world.network.refuseDials(recordOf(0).address, 1 << 20);
  raw.world.network.deliverAll();
  RawPeer second = raw.dial({1, true, {16390, {}}, {}}, 1); // of none that were sent
  REQUIRE(second.heard() == std::vector{FrameKind::refuse});
  const Refusal refusal = Refusal::decode(second.lastFrame());
  CHECK(refusal.code == ErrorCode::sessionUnknown);
  CHECK(refusal.reason == "the peer says that it received frame 16390, of 0 that were sent");
  RawPeer third = raw.dial({2, false, {}, {}}, 1);
  CHECK(welcomedBy(third).id == 2);
  CHECK(raw.b.deaths().empty());
}

TEST_CASE("a dialer that never got the welcome is sent all of it again", "[link_manager_resume]") {
  RawSession raw;
  RawPeer first = raw.dial({1, false, {}, {}});
  CHECK(welcomedBy(first).id == 1);
  CHECK(raw.b.links().status().front().state == PeerState::connected);
  raw.b.links().send(0, textFrame("at once"), raw.world.ledger.expect("a send"));
  first.close();
  raw.world.network.refuseDials(recordOf(0).address, 1 << 20);
  raw.world.network.deliverAll();
  RawPeer second = raw.dial({1, false, {}, {}});
  REQUIRE(second.heard() == std::vector{FrameKind::welcome, FrameKind::request});
  CHECK(textOf(second.lastFrame()) == "at once");
  CHECK(raw.b.losses().empty());
}

TEST_CASE("a dialer takes a dial that goes on with what it dials for", "[link_manager_resume]") {
  World world;
  MemoryWorker a(world, 0, settingsOf(kLong));
  std::shared_ptr<Link> dialed; // on which the welcome is lost
  world.network.context(recordOf(1).address).listen([&](std::shared_ptr<Link> link) {
    dialed = std::move(link);
  });
  a.links().addPeer(recordOf(1));
  a.start();
  a.links().send(1, textFrame("queued"), world.ledger.expect("a send"));
  world.network.deliverAll();
  RawPeer peer = RawPeer::dial(world, a);
  Hello hello = helloOf(recordOf(1), a);
  const bool wasWelcomed = GENERATE(true, false);
  hello.session = {1, wasWelcomed, {}, {}};
  peer.say(hello.encode(FrameKind::hello));
  world.network.deliverAll();
  if (wasWelcomed) {
    CHECK(peer.heard() == std::vector{FrameKind::welcome, FrameKind::request});
  } else { // two dials cross
    CHECK(peer.heard() == std::vector{FrameKind::refuse});
  }
}

TEST_CASE(
    "a dialer that lost the welcome to a later link replaces that, though nobody has told of its "
    "end",
    "[link_manager_resume]") {
  WorkerSettings settings = settingsOf(kLong);
  settings.limits.resumeDial = milliseconds(40);
  RawSession raw(settings);
  RawPeer first = raw.dial({1, false, {}, {}});
  RawPeer second = raw.dial({1, true, {}, {}}, 1);
  CHECK(welcomedBy(second).established);
  std::atomic<bool> over = false;
  raw.world.timer.after(milliseconds(60), [&] { over = true; });
  SECTION("in time, it is one that comes late") {
    RawPeer third = raw.dial({1, true, {}, {}}, 1);
    CHECK(third.heard() == std::vector{FrameKind::refuse});
  }
  SECTION("when no welcome is waited for any more") {
    REQUIRE(raw.until([&] { return over.load(); }));
    RawPeer third = raw.dial({1, true, {}, {}}, 1);
    CHECK(welcomedBy(third).established);
  }
  SECTION("but not where something has come on it") {
    second.say(RawSession::numbered("1", 1));
    REQUIRE(raw.until([&] { return over.load(); }));
    RawPeer third = raw.dial({1, true, {}, {}}, 1);
    CHECK(third.heard() == std::vector{FrameKind::refuse});
  }
  REQUIRE(raw.until([&] { return over.load(); }));
  CHECK(raw.b.losses().empty());
}

TEST_CASE("a frame that has come before is dropped", "[link_manager_resume]") {
  RawSession raw;
  raw.world.network.refuseDials(recordOf(0).address, 1 << 20);
  RawPeer first = raw.dial({1, false, {}, {}});
  first.say(RawSession::numbered("1", 1));
  first.say(RawSession::numbered("3", 3));
  first.say(RawSession::numbered("3", 3));
  first.say(RawSession::numbered("1", 1));
  raw.world.network.deliverAll();
  CHECK(raw.b.texts() == Texts{"1", "3"});
  first.close();
  raw.world.network.deliverAll();
  RawPeer second = raw.dial({1, true, {}, {}}, 1);
  const SessionClaim claim = welcomedBy(second);
  CHECK(claim.established);
  CHECK(claim.received.through == 1);
  CHECK(claim.received.beyond == std::vector<Receipts::Range>{{3, 3}});
  for (const char* text : {"1", "2", "3"}) {
    second.say(RawSession::numbered(text, static_cast<uint64_t>(text[0] - '0')));
  }
  raw.world.network.deliverAll();
  CHECK(raw.b.texts() == Texts{"1", "3", "2"});
}

TEST_CASE("what comes is acknowledged where no frame goes back", "[link_manager_resume]") {
  RawSession raw;
  RawPeer peer = raw.dial({1, false, {}, {}});
  peer.say(RawSession::numbered("1", 1));
  peer.say(RawSession::numbered("2", 2));
  const auto isAcknowledged = [&] { // on a busy machine each by itself
    return peer.heard().back() == FrameKind::acknowledge &&
        readHeader(peer.lastFrame()).header.acknowledged == 2;
  };
  REQUIRE(raw.until(isAcknowledged));
  CHECK(readHeader(peer.lastFrame()).header.sequence == 0);
}

TEST_CASE(
    "a frame that breaks the protocol once is sent again, twice ends", "[link_manager_resume]") {
  RawSession raw;
  raw.world.network.refuseDials(recordOf(0).address, 1 << 20);
  RawPeer first = raw.dial({1, false, {}, {}});
  OutgoingFrame damaged = RawSession::numbered("1", 1);
  damaged.head[0] = 99;
  first.say(damaged);
  raw.world.network.deliverAll();
  CHECK(raw.b.losses().empty());
  CHECK(first.heard() == std::vector{FrameKind::welcome, FrameKind::refuse});
  RawPeer second = raw.dial({1, true, {}, {}}, 1);
  CHECK(welcomedBy(second).received.through == 0);
  SECTION("once") {
    second.say(RawSession::numbered("1", 1));
    raw.world.network.deliverAll();
    CHECK(raw.b.texts() == Texts{"1"});
    CHECK(raw.b.losses().empty());
  }
  SECTION("twice") {
    second.say(damaged);
    raw.world.network.deliverAll();
    REQUIRE(raw.b.losses().size() == 1);
    CHECK_THAT(raw.b.losses()[0].error.message(), Catch::Contains("a frame broke the protocol: "));
  }
}

TEST_CASE("an acknowledgement of what was not sent breaks the protocol", "[link_manager_resume]") {
  RawSession raw;
  RawPeer peer = raw.dial({1, false, {}, {}});
  peer.say(RawSession::numbered("1", 1, 7));
  raw.world.network.deliverAll();
  REQUIRE(peer.heard() == std::vector{FrameKind::welcome, FrameKind::refuse});
  CHECK(
      Refusal::decode(peer.lastFrame()).reason ==
      "a frame broke the protocol: frame 7 is acknowledged, of 0 that were sent");
  CHECK(raw.b.texts().empty());
}

TEST_CASE(
    "a frame that is lost without its link comes on another link, and no session ends",
    "[link_manager_resume]") {
  const Style style = GENERATE(Style::pumped, Style::threaded);
  CAPTURE(nameOf(style));
  SessionPair pair(style, settingsOf(milliseconds(400)));
  // What is lost is the request, or its acknowledgement.
  pair.world.network.loseNext(
      GENERATE(true, false) ? pair.b.record().address : pair.a.record().address);
  pair.a.send(pair.b, "request");
  // Dials that cross may break a link once more.
  CHECK(pair.until([&] { return linksLost(pair.a) >= 1 && pair.b.texts() == Texts{"request"}; }));
  pair.a.send(pair.b, "next");
  CHECK(pair.until([&] { return pair.b.texts() == Texts{"request", "next"}; }));
  CHECK(pair.a.losses().empty());
  CHECK(pair.b.losses().empty());
}

TEST_CASE(
    "a link on which a large frame has begun goes, once nothing comes any more",
    "[link_manager_resume]") {
  SessionPair pair(Style::threaded, settingsOf(kLong), settingsOf(milliseconds(400)));
  pair.world.network.beginLargeFrame(pair.b.record().address);
  std::atomic<bool> over = false; // more than twice as long
  pair.world.timer.after(milliseconds(500), [&] { over = true; });
  CHECK(pair.until([&] {
    *pair.world.network.arrivals() += 1;
    return over.load();
  }));
  CHECK(linksLost(pair.b) == 0);
  CHECK(pair.until([&] { return linksLost(pair.b) >= 1; }));
  pair.a.send(pair.b, "next");
  CHECK(pair.until([&] { return pair.b.texts() == Texts{"next"}; }));
  CHECK(pair.a.losses().empty());
  CHECK(pair.b.losses().empty());
}

TEST_CASE(
    "a peer that stands still, and makes no other link, loses its session",
    "[link_manager_resume]") {
  RawSession raw(settingsOf(milliseconds(100)));
  raw.world.network.refuseDials(recordOf(0).address, 1 << 20);
  RawPeer peer = raw.dial({1, false, {}, {}});
  CallbackNote& note = raw.world.ledger.note("call");
  raw.b.links().send(0, textFrame("1"), CallbackLedger::expect(note));
  SECTION("it does") {
    REQUIRE(raw.until([&] { return raw.b.losses().size() == 1; }));
    const Error error = raw.b.losses()[0].error;
    CHECK(error.code() == ErrorCode::silent);
    CHECK_THAT(
        error.message(),
        Catch::EndsWith(
            "(it has not said anything for 50 ms): its process may have ended or stand still, see "
            "its log; it could not be resumed: no new connection within 100 ms"));
    // The loss is told, by the timer's thread, before the peer may be dialed anew.
    CHECK(raw.until([&] { return raw.b.links().status()[0].state == PeerState::idle; }));
  }
  SECTION("it acknowledges") {
    raw.world.network.deliverAll();
    OutgoingFrame acknowledge = bareFrame(FrameKind::acknowledge);
    setSequence(acknowledge, 0, 1);
    peer.say(std::move(acknowledge));
    raw.world.network.deliverAll();
    std::atomic<bool> over = false; // longer than its time
    raw.world.timer.after(milliseconds(300), [&] { over = true; });
    REQUIRE(raw.until([&] { return over.load(); }));
    CHECK(raw.b.losses().empty());
  }
}

TEST_CASE("a peer that nobody listens for is dead", "[link_manager_resume]") {
  WorkerSettings ofB = settingsOf(kLong);
  ofB.limits.precedence = kLong; // it does not dial: it is dead
  SessionPair pair(Style::pumped, settingsOf(kLong), ofB);
  CHECK(pair.call(pair.a, pair.b, 1).succeeded());
  pair.world.network.cut();
  pair.b.context().join();
  REQUIRE(pair.until([&] { return pair.a.losses().size() == 1; }));
  CHECK_THAT(
      pair.a.losses()[0].error.message(),
      Catch::EndsWith("; it could not be resumed: nobody listens at memory://w1"));
  CHECK(pair.a.losses()[0].received.empty()); // as far as this side knows
}

TEST_CASE(
    "a peer that starts anew ends the session of its former process", "[link_manager_resume]") {
  SessionPair pair;
  CHECK(pair.call(pair.a, pair.b, 1).succeeded());
  WorkerRecord anew = pair.b.record();
  anew.incarnation = 4711;
  SECTION("while there is a link") {}
  SECTION("while there is none") {
    pair.world.network.cut();
    pair.world.network.deliverAll();
  }
  pair.a.links().addPeer(anew);
  REQUIRE(pair.a.losses().size() == 1);
  CHECK_THAT(pair.a.losses()[0].error.message(), Catch::Contains("was started anew"));
  CHECK(pair.a.losses()[0].received.empty()); // as far as this side knows
}

TEST_CASE("a peer that leaves ends the session as before", "[link_manager_resume]") {
  SessionPair pair;
  pair.call(pair.b, pair.a, 1);
  pair.a.links().leave(milliseconds(0));
  REQUIRE(pair.until([&] { return pair.b.losses().size() == 1; }));
  CHECK(pair.b.losses()[0].error.code() == ErrorCode::peerLeft);
  CHECK(pair.b.stateOf(pair.a) == PeerState::left);
  CHECK(pair.a.losses().size() <= 1); // its own link, which the leave has closed
}

TEST_CASE("a worker that leaves ends the sessions that have no link", "[link_manager_resume]") {
  SessionPair pair(Style::pumped, settingsOf(kLong), settingsOf(kLong));
  pair.world.network.cut();
  pair.world.network.deliverAll();
  REQUIRE(pair.b.stateOf(pair.a) == PeerState::resuming);
  const CallbackNote& waiting = pair.a.send(pair.b, "too late");
  pair.a.links().leave(milliseconds(0));
  CHECK(waiting.error().code() == ErrorCode::shutDown);
  REQUIRE(pair.until([&] { return pair.b.losses().size() == 1; }));
  CHECK_THAT(
      pair.b.losses()[0].error.message(),
      Catch::EndsWith("; it could not be resumed: worker 'w0' (rank 0) is shutting down"));
}

TEST_CASE("where one side wants no sessions there are none", "[link_manager_resume]") {
  const bool dialerWants = GENERATE(true, false);
  SessionPair pair(
      Style::pumped, settingsOf(dialerWants ? kLong : milliseconds(0)),
      settingsOf(dialerWants ? milliseconds(0) : kLong));
  CHECK(pair.a.send(pair.b, "1").succeeded());
  CHECK(pair.b.sendIfConnected(pair.a, "2").succeeded());
  pair.world.network.deliverAll();
  CHECK(pair.b.texts() == Texts{"1"});
  CHECK(pair.a.texts() == Texts{"2"});
  pair.world.network.cut();
  REQUIRE(pair.until([&] { return pair.a.losses().size() == 1 && pair.b.losses().size() == 1; }));
  CHECK(pair.a.losses()[0].received.empty());
}

TEST_CASE(
    "what is beyond the bound waits for acknowledgements, in order", "[link_manager_resume]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  WorkerSettings bounded = settingsOf(kLong);
  bounded.limits.sessionBytes = 3 * textFrame("10").bytes();
  bounded.limits.acknowledgeDelay = milliseconds(5);
  SessionPair pair(style, bounded, settingsOf(kLong));
  Texts all;
  for (int i = 10; i < 60; ++i) {
    all.push_back(std::to_string(i));
    pair.a.send(pair.b, all.back());
    if (i == 30) {
      pair.world.network.cut();
    }
  }
  CHECK(pair.until([&] { return pair.b.texts().size() == all.size(); }));
  CHECK(pair.b.texts() == all);
  CHECK(pair.until([&] { return pair.world.ledger.allCalled(); }));
}

TEST_CASE(
    "the time of a former incarnation's session does not end that of the next one",
    "[link_manager_resume]") {
  constexpr milliseconds kShort{200};
  WorkerSettings settings = settingsOf(kShort);
  settings.unknownPeer = [](const Hello&) { return std::nullopt; };
  RawSession raw(settings);
  raw.world.network.context("memory://w0").listen([](const std::shared_ptr<Link>&) {});
  // Both are the first of their incarnations, and break once.
  RawPeer before = raw.dial({1, false, {}, {}});
  welcomedBy(before);
  before.close();
  REQUIRE(raw.until([&] { return raw.b.links().status()[0].state == PeerState::resuming; }));
  std::this_thread::sleep_for(kShort / 2);
  WorkerRecord next = recordOf(0);
  next.incarnation = 4711;
  RawPeer after = RawPeer::dial(raw.world, raw.b);
  Hello hello = helloOf(next, raw.b);
  hello.linkId = 99;
  hello.session = {1, false, {}, {}};
  after.say(hello.encode(FrameKind::hello));
  REQUIRE(raw.until([&] { return !after.heard().empty(); }));
  welcomedBy(after);
  const size_t losses = raw.b.losses().size(); // of the former one
  after.close();
  const auto broken = std::chrono::steady_clock::now();
  REQUIRE(raw.until([&] { return raw.b.losses().size() > losses; }));
  CHECK(std::chrono::steady_clock::now() - broken >= kShort);
}
