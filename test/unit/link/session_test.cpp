// What a session keeps, acknowledges and drops, without links.
#include "backend/link/session.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "test/unit/support/memory_worker.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;
using Ranges = std::vector<Receipts::Range>;

namespace {

constexpr size_t kNoLimit = size_t{1} << 30;

OutgoingFrame callFrame(uint64_t id) {
  OutgoingFrame frame = textFrame("12345678");
  setCallId(frame, id);
  return frame;
}

FrameHeader headerOf(const OutgoingFrame& frame) {
  ByteReader in(frame.head);
  return FrameHeader::read(in);
}

uint64_t sequenceOf(const SharedFrame& frame) {
  return headerOf(*frame).sequence;
}

std::vector<uint64_t> sequencesOf(const std::vector<SharedFrame>& frames) {
  std::vector<uint64_t> all;
  std::transform(frames.begin(), frames.end(), std::back_inserter(all), sequenceOf);
  return all;
}

size_t releaseAll(SentFrames& sent) {
  size_t all = 0;
  for (;;) {
    SentFrames::Released released;
    const size_t count = sent.release(released);
    all += count;
    if (count < released.size()) {
      return all;
    }
  }
}

} // namespace

TEST_CASE("each frame is taken once, in whatever order they come", "[session]") {
  for (const unsigned seed : seeds(300)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<uint64_t> arriving;
    const uint64_t count = 1 + random() % 60;
    for (uint64_t sequence = 1; sequence <= count; ++sequence) {
      arriving.insert(arriving.end(), 1 + random() % 3, sequence);
    }
    std::shuffle(arriving.begin(), arriving.end(), random);
    ReceivedFrames received;
    std::vector<bool> seen(count + 2);
    for (const uint64_t sequence : arriving) {
      CHECK(received.add(sequence) == !seen[sequence]);
      seen[sequence] = true;
      uint64_t through = 0;
      while (seen[through + 1]) {
        ++through;
      }
      REQUIRE(received.through() == through);
      const Receipts receipts = received.receipts();
      std::vector<bool> said(count + 2);
      for (const auto& range : receipts.beyond) {
        REQUIRE(range.first > through + 1);
        std::fill(
            said.begin() + static_cast<ptrdiff_t>(range.first),
            said.begin() + static_cast<ptrdiff_t>(range.last) + 1, true);
      }
      for (uint64_t s = through + 1; s <= count; ++s) {
        REQUIRE(said[s] == seen[s]);
      }
    }
    CHECK(received.through() == count);
    CHECK(received.receipts().beyond.empty());
  }
}

TEST_CASE("a session with absurdly many gaps is refused", "[session]") {
  ReceivedFrames received;
  const auto addEveryOther = [&] {
    for (uint64_t sequence = 2;; sequence += 2) {
      received.add(sequence);
    }
  };
  CHECK_THROWS_AS(addEveryOther(), FormatError);
}

TEST_CASE("what is kept goes when it is acknowledged", "[session]") {
  SentFrames sent(kNoLimit);
  const auto owner = std::make_shared<int>(1);
  for (uint64_t id = 1; id <= 20; ++id) {
    OutgoingFrame frame = callFrame(id);
    frame.owner = owner;
    CHECK(sequenceOf(sent.add(std::move(frame), 0)) == id);
  }
  CHECK(owner.use_count() == 21);
  sent.acknowledge(18);
  CHECK(owner.use_count() == 21); // not under the caller's lock
  CHECK(releaseAll(sent) == 18);
  CHECK(owner.use_count() == 3);
  sent.acknowledge(3); // of a frame that was sent again
  CHECK(releaseAll(sent) == 0);
  CHECK(sent.receivedCalls().size() == 18);
  CHECK(sent.receivedCalls().contains(18));
  CHECK_THROWS_WITH(sent.acknowledge(21), "frame 21 is acknowledged, of 20 that were sent");
}

TEST_CASE("which calls the peer has received and not answered is known", "[session]") {
  SentFrames sent(kNoLimit);
  for (uint64_t id = 1; id <= 4; ++id) {
    sent.add(callFrame(id), 0);
  }
  CHECK(sent.receivedCalls().empty());
  sent.acknowledge(2);
  CHECK(sent.receivedCalls() == CallIds{1, 2});
  sent.answered(1, 2);
  CHECK(sent.receivedCalls() == CallIds{2});
  sent.answered(4, 2); // before the acknowledgement
  releaseAll(sent);
  sent.acknowledge(4);
  CHECK(sent.receivedCalls() == CallIds{2, 3});
  sent.answered(77, 4); // a call of an earlier session
  CHECK(sent.receivedCalls() == CallIds{2, 3});
}

TEST_CASE("what the peer lacks is sent again, in order", "[session]") {
  SentFrames sent(kNoLimit);
  for (uint64_t id = 1; id <= 10; ++id) {
    sent.add(callFrame(100 + id), 0);
  }
  sent.acknowledge(2); // and not released
  const Receipts peers{4, Ranges{{6, 7}, {9, 9}}};
  REQUIRE_FALSE(sent.objectionTo(peers));
  const SentFrames::Rest rest = sent.resume(peers);
  CHECK(sequencesOf(rest.lacking) == std::vector<uint64_t>{5, 8, 10});
  CHECK(rest.released.size() == 7);
  CHECK(sent.receivedCalls() == CallIds{101, 102, 103, 104, 106, 107, 109});
  sent.acknowledge(10);
  CHECK(releaseAll(sent) == 3);
}

TEST_CASE("a peer cannot have received what was not sent, nor less than it said", "[session]") {
  SentFrames sent(kNoLimit);
  for (uint64_t id = 1; id <= 5; ++id) {
    sent.add(callFrame(id), 0);
  }
  sent.acknowledge(3);
  CHECK_FALSE(sent.objectionTo({3, {}}));
  CHECK_FALSE(sent.objectionTo({3, Ranges{{5, 5}}}));
  CHECK(sent.objectionTo({6, {}}));
  CHECK(sent.objectionTo({3, Ranges{{5, 6}}}));
  CHECK(sent.objectionTo({2, {}}));
}

TEST_CASE("what is kept is bounded, but for a single frame", "[session]") {
  const size_t bytes = callFrame(1).bytes();
  SentFrames sent(2 * bytes);
  CHECK(sent.hasRoom(100 * bytes));
  sent.add(callFrame(1), 0);
  CHECK_FALSE(sent.hasRoom(2 * bytes));
  CHECK(sent.hasRoom(bytes));
  sent.add(callFrame(2), 0);
  CHECK_FALSE(sent.hasRoom(1));
  sent.acknowledge(1);
  CHECK_FALSE(sent.hasRoom(1)); // it is kept until it is released
  releaseAll(sent);
  CHECK(sent.hasRoom(bytes));
}

TEST_CASE("a frame acknowledges what has come in order", "[session]") {
  Session session(1, kNoLimit);
  CHECK(headerOf(*session.number(callFrame(1))).acknowledged == 0);
  session.receive({.kind = FrameKind::request, .sequence = 1}, 1);
  session.receive({.kind = FrameKind::request, .sequence = 3}, 1);
  CHECK(headerOf(*session.number(callFrame(2))).acknowledged == 1);
  session.receive({.kind = FrameKind::request, .sequence = 2}, 1);
  CHECK(headerOf(*session.number(callFrame(3))).acknowledged == 3);
}

TEST_CASE("only what no frame acknowledges takes one of its own", "[session]") {
  Session session(1, kNoLimit);
  const auto receive = [&](uint64_t sequence) {
    return session.receive({.kind = FrameKind::request, .sequence = sequence}, 1);
  };
  CHECK(receive(1).startTimer);
  CHECK_FALSE(receive(2).startTimer); // it runs
  session.number(callFrame(1));
  SECTION("nothing is left to acknowledge") {
    const Session::Arrival due = session.onTimer();
    CHECK_FALSE(due.acknowledge);
    CHECK_FALSE(due.startTimer);
    CHECK(receive(3).startTimer);
  }
  SECTION("what came late has its time") {
    receive(3);
    const Session::Arrival due = session.onTimer();
    CHECK_FALSE(due.acknowledge);
    CHECK(due.startTimer);
    CHECK(session.onTimer().acknowledge == 3u);
  }
  SECTION("much is acknowledged at once") {
    const Session::Arrival much =
        session.receive({.kind = FrameKind::request, .sequence = 3}, kNoLimit / 2);
    CHECK(much.acknowledge == 3u);
    CHECK_FALSE(session.onTimer().startTimer);
  }
}

TEST_CASE("an acknowledgement is not acknowledged", "[session]") {
  Session session(1, kNoLimit);
  const Session::Arrival arrival = session.receive({.kind = FrameKind::acknowledge}, 1 << 20);
  CHECK_FALSE(arrival.startTimer);
  CHECK_FALSE(arrival.acknowledge);
}

TEST_CASE(
    "a peer that says nothing though it has something to acknowledge gets a new link, and then is "
    "silent",
    "[session]") {
  using Watch = Session::Watch;
  const auto watches = [](Session& watched, size_t quarters) {
    std::vector<Watch> seen;
    while (seen.size() < quarters) {
      seen.push_back(watched.onWatch());
    }
    return seen;
  };
  using Seen = std::vector<Watch>;
  const Error silence(ErrorCode::linkBroken, "silence");
  Session session(1, kNoLimit);
  session.linked({});
  session.number(callFrame(1));
  REQUIRE(session.startsWatch());
  CHECK_FALSE(session.startsWatch()); // it runs
  SECTION("there is no link") {
    session.broke(silence, false);
    CHECK(watches(session, 5) == Seen(5, Watch::again));
    CHECK_FALSE(session.relinksForSilence());
  }
  SECTION("a large frame arrives, behind which the others wait") {
    session.startsArriving();
    CHECK(watches(session, 4) == Seen{Watch::again, Watch::again, Watch::again, Watch::silent});
  }
  SECTION("it was silent for half of its time") {
    CHECK(watches(session, 2) == Seen{Watch::again, Watch::relink});
    CHECK(session.relinksForSilence());
    session.broke(silence, false);
    SECTION("no link is made") { // its time is the LinkManager's matter
      CHECK(watches(session, 4) == Seen(4, Watch::again));
    }
    SECTION("it is silent on a few more links") {
      for (int links = 0; links < 3; ++links) {
        session.linked({});
        CHECK(watches(session, 2) == Seen{Watch::again, Watch::relink});
        session.broke(silence, false);
      }
      session.linked({});
      CHECK(watches(session, 3) == Seen(3, Watch::again));
      CHECK_FALSE(session.isOver());
      CHECK(session.onWatch() == Watch::silent);
      CHECK(session.isOver());
    }
    SECTION("it says something on the next link, whatever that is") {
      session.linked({});
      session.receive({.kind = FrameKind::acknowledge}, 1);
      CHECK_FALSE(session.relinksForSilence());
      CHECK(watches(session, 3) == Seen{Watch::again, Watch::again, Watch::relink});
    }
    SECTION("it has received something, as its welcome says") {
      session.number(callFrame(2));
      session.linked({.through = 1});
      CHECK(watches(session, 3) == Seen{Watch::again, Watch::again, Watch::relink});
    }
  }
  SECTION("it says something, whatever that is") {
    CHECK(session.onWatch() == Watch::again);
    session.receive({.kind = FrameKind::acknowledge}, 1);
    CHECK(watches(session, 3) == Seen{Watch::again, Watch::again, Watch::relink});
  }
  SECTION("all is acknowledged") {
    session.receive({.kind = FrameKind::acknowledge, .acknowledged = 1}, 1);
    CHECK(session.onWatch() == Watch::end);
    session.number(callFrame(2));
    CHECK(session.startsWatch());
  }
}

TEST_CASE("while a large frame arrives its sender hears of it", "[session]") {
  Session session(1, kNoLimit);
  session.receive({.kind = FrameKind::request, .sequence = 1}, 1);
  REQUIRE(session.startsArriving());
  CHECK_FALSE(session.startsArriving()); // it runs
  CHECK(session.onArriving({}).acknowledge == 1u);
  CHECK(session.onArriving({}).acknowledge == 1u);
  session.receive({.kind = FrameKind::request, .sequence = 2}, kNoLimit);
  CHECK_FALSE(session.onArriving({}).acknowledge);
  CHECK(session.startsArriving());
  session.linked({}); // the frame went with its link
  CHECK_FALSE(session.onArriving({}).acknowledge);
}

TEST_CASE("a large frame of which nothing comes any more has stalled", "[session]") {
  Session session(1, kNoLimit);
  session.linked({});
  session.startsArriving();
  const auto stalls = [&](std::optional<uint64_t> bytes) {
    const Session::Arriving arriving = session.onArriving(bytes);
    CHECK(arriving.acknowledge);
    return arriving.relink;
  };
  SECTION("it goes on") {
    for (uint64_t bytes : {10, 10, 20, 20, 30, 30}) {
      CHECK_FALSE(stalls(bytes));
    }
  }
  SECTION("it does not") {
    CHECK_FALSE(stalls(10));
    CHECK_FALSE(stalls(10));
    CHECK(stalls(10));
    CHECK_FALSE(stalls(10)); // the next link is on its way
    session.linked({});
    session.startsArriving();
    CHECK_FALSE(stalls(10));
    CHECK_FALSE(stalls(10));
    CHECK(stalls(10));
  }
  SECTION("nobody counts") {
    for (int quarters = 0; quarters < 10; ++quarters) {
      CHECK_FALSE(stalls({}));
    }
  }
}

TEST_CASE("the same frame may break the protocol once", "[session]") {
  Session session(1, kNoLimit);
  const Error why(ErrorCode::badFrame, "damaged");
  session.broke(why, true);
  CHECK_FALSE(session.failsRepeatedly());
  SECTION("again") {
    session.broke(Error(ErrorCode::linkBroken, "cut"), false);
    session.broke(why, true);
    CHECK(session.failsRepeatedly());
  }
  SECTION("another one") {
    session.receive({.kind = FrameKind::request, .sequence = 1}, 1);
    session.broke(why, true);
    CHECK_FALSE(session.failsRepeatedly());
  }
}

TEST_CASE("what a hello says of its session survives the journey", "[session]") {
  Hello hello;
  hello.self = recordOf(3);
  hello.session = {0xfedcba9876543210, true, {7, Ranges{{9, 9}, {12, 20}}}, {}};
  const Hello read = Hello::decode(loopBack(hello.encode(FrameKind::hello)));
  CHECK(read.session.id == 0xfedcba9876543210);
  CHECK(read.session.established);
  CHECK(read.session.received.through == 7);
  CHECK(read.session.received.beyond == Ranges{{9, 9}, {12, 20}});
}

TEST_CASE("ranges that no session can have received are refused", "[session]") {
  Hello hello;
  hello.self = recordOf(3);
  const Ranges ranges =
      GENERATE(Ranges{{5, 6}}, Ranges{{6, 6}}, Ranges{{8, 7}}, Ranges{{8, 9}, {10, 11}});
  hello.session = {1, true, {5, ranges}, {}};
  CHECK_THROWS_AS(Hello::decode(loopBack(hello.encode(FrameKind::hello))), FormatError);
}

TEST_CASE("a refusal says whether it is for an unknown session", "[session]") {
  const ErrorCode code =
      GENERATE(ErrorCode::refused, ErrorCode::duplicateLink, ErrorCode::sessionUnknown);
  CHECK(Refusal::decode(loopBack(Refusal{code, "why"}.encode())).code == code);
}
