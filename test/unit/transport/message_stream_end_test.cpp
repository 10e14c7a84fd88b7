// How a message stream ends: closed, broken, or by a peer that goes or does not keep to the protocol.
#include "backend/transport/message_stream.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/transport/loop_watch.h"
#include "backend/transport/message_streams.h"
#include "test/unit/support/impatient_stream.h"
#include "test/unit/support/message_stream_under_test.h"
#include "test/unit/support/notifier.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

const std::string kLeft = "the other end has left";

// A message stream with the test.
struct Lone {
  explicit Lone(size_t capacity = 1000, unsigned seed = 1)
      : wire(MemoryWire::make(capacity, seed)) {}

  void startImpatiently(milliseconds patience, size_t heldBack) {
    onLoop(*loop, [&] {
      talk->start(std::make_unique<ImpatientStream>(wire->stream(*loop, 0), patience, heldBack));
    });
  }
  /// By default longer than any of these patiences.
  void pause(milliseconds time = milliseconds(300)) {
    Notifier over;
    std::atomic<bool> isOver{false};
    std::unique_ptr<LoopTimer> timer;
    onLoop(*loop, [&] {
      timer = std::make_unique<LoopTimer>(*loop);
      timer->start(time, [&] {
        isOver = true;
        over.notify();
      });
    });
    REQUIRE(over.waitUntil([&] { return isOver.load(); }));
    onLoop(*loop, [&] { timer.reset(); });
  }

  const std::shared_ptr<Loop> loop = Loop::start("test");
  const std::shared_ptr<MemoryWire> wire;
  MessageStreamUnderTest talk{loop, wire};
};

} // namespace

// ---- closed ---------------------------------------------------------------------------------------

TEST_CASE("closing fails what is pending, and says when all is over", "[message_stream_end]") {
  Lone lone(4);
  if (GENERATE(true, false)) {
    lone.talk.start();
  }
  const auto read = lone.talk.readMessage();
  const CallbackNote& write = lone.talk.write("more than there is room for");
  onLoop(*lone.loop, [] {});
  CHECK_FALSE(lone.talk.ended.called());
  lone.talk->close();
  lone.talk->close();
  REQUIRE(lone.talk.waitForAll());
  REQUIRE(lone.talk.waitForEnd());
  CHECK(read->note.error().code() == ErrorCode::shutDown);
  CHECK(write.error().code() == ErrorCode::shutDown);
  CHECK(write.error().message() == "the connection was closed");
  CHECK(lone.talk.misplaced() + lone.talk.late() == 0);
}

TEST_CASE("what is asked after closing fails, too", "[message_stream_end]") {
  Lone lone;
  lone.talk.start();
  lone.wire->put(1, onTheWire("it has arrived"));
  onLoop(*lone.loop, [&] {
    lone.talk->close();
    lone.talk.readMessage();
    lone.talk.write("text");
  });
  REQUIRE(lone.talk.waitForAll());
  CHECK(lone.talk.order().size() == 2);
  CHECK(lone.talk.misplaced() == 0);
  CHECK(lone.wire->take(1).empty());
}

TEST_CASE("closing lets the peer go", "[message_stream_end]") {
  Lone lone;
  lone.talk.start();
  CHECK_FALSE(lone.wire->hasLeft(0));
  lone.talk->close();
  REQUIRE(lone.talk.waitForEnd());
  CHECK(lone.wire->hasLeft(0));
}

TEST_CASE("a connection that comes to stand after closing is dropped", "[message_stream_end]") {
  Lone lone;
  lone.talk->close();
  lone.talk.start();
  CHECK(lone.wire->hasLeft(0));
}

TEST_CASE("a message stream may be closed in its own callback", "[message_stream_end]") {
  Lone lone;
  CallbackLedger ledger;
  lone.talk.start();
  CallbackNote& note = ledger.note("the callback that closes");
  const auto pending = lone.talk.readInto(3);
  const auto later = lone.talk.readMessage();
  lone.talk->write(std::vector<char>(3), [&](const Error& error) {
    lone.talk->close();
    note.add(error);
  });
  REQUIRE(ledger.waitForAll());
  REQUIRE(lone.talk.waitForAll());
  CHECK_FALSE(note.error());
  CHECK(pending->note.error().code() == ErrorCode::shutDown);
  CHECK(later->note.error().code() == ErrorCode::shutDown);
}

TEST_CASE("closing amid traffic calls everything back once", "[message_stream_end]") {
  for (const unsigned seed : seeds(40)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto loop = Loop::start("test");
    const auto wire = MemoryWire::make(1 + random() % 100, seed);
    MessageStreamUnderTest left(loop, wire, 0), right(loop, wire, 1);
    left.start();
    right.start();
    const unsigned pause = random() % 1000;
    std::thread asking([&] {
      for (size_t i = 0; i < 100; ++i) {
        left.write(std::string(i, 'x'));
        right.readMessage();
      }
    });
    std::thread closing([&] {
      for (unsigned i = 0; i < pause; ++i) {
        std::this_thread::yield();
      }
      (seed % 2 == 0 ? left : right)->close();
    });
    asking.join();
    closing.join();
    left->close();
    right->close();
    REQUIRE(left.waitForAll());
    REQUIRE(right.waitForAll());
    CHECK(left.misplaced() + right.misplaced() == 0);
  }
}

// ---- broken ---------------------------------------------------------------------------------------

TEST_CASE(
    "a connection that will never stand fails all, and the first error is the one told",
    "[message_stream_end]") {
  Lone lone;
  const auto read = lone.talk.readMessage();
  const CallbackNote& write = lone.talk.write("text");
  onLoop(*lone.loop, [&] {
    lone.talk->fail(Error(ErrorCode::unreachable, "nobody is there"));
    lone.talk->fail(Error(ErrorCode::timeout, "too late"));
  });
  REQUIRE(lone.talk.waitForAll());
  CHECK(read->note.error().message() == "nobody is there");
  CHECK(write.error().code() == ErrorCode::unreachable);
  lone.talk->close();
  const auto late = lone.talk.readMessage();
  REQUIRE(lone.talk.waitForAll());
  CHECK(late->note.error().message() == "nobody is there");
}

TEST_CASE("failing in a callback does not change the order of the others", "[message_stream_end]") {
  Lone lone(1000, 0); // both writes are over at once
  lone.talk.start();
  std::vector<int> order;
  onLoop(*lone.loop, [&] {
    lone.talk->write(std::vector<char>(1), [&](const Error&) {
      order.push_back(1);
      lone.talk->fail(Error(ErrorCode::linkBroken, "as the test wants it"));
    });
    lone.talk->write(std::vector<char>(1), [&](const Error&) { order.push_back(2); });
    lone.talk->readMessage([&](const Error&, const char*, size_t) { order.push_back(3); });
  });
  lone.talk->close();
  REQUIRE(lone.talk.waitForEnd());
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("a stream that cannot be started is an error", "[message_stream_end]") {
  struct Unwatchable final : Stream {
    void start(std::function<void()>) override {
      throw std::runtime_error("it cannot be watched");
    }
    void setInterest(bool, bool) override {}
    Progress write(const iovec*, size_t) override {
      return {};
    }
    Progress read(void*, size_t) override {
      return {};
    }
  };
  Lone lone;
  const auto read = lone.talk.readMessage();
  onLoop(*lone.loop, [&] { lone.talk->start(std::make_unique<Unwatchable>()); });
  REQUIRE(lone.talk.waitForAll());
  CHECK(read->note.error().message() == "it cannot be watched");
}

TEST_CASE(
    "what arrived before the peer's end can still be read, and then the end is told",
    "[message_stream_end]") {
  Lone lone;
  lone.talk.start();
  lone.wire->put(1, onTheWire("first") + onTheWire("") + onTheWire("third"));
  lone.wire->leave(1);
  const CallbackNote& write = lone.talk.write("nobody hears this");
  REQUIRE(lone.talk.waitForAll());
  CHECK(write.error().message() == kLeft);
  const auto first = lone.talk.readMessage();
  const auto second = lone.talk.readInto(0);
  const auto third = lone.talk.readMessage();
  const auto fourth = lone.talk.readMessage();
  REQUIRE(lone.talk.waitForAll());
  CHECK(first->message == "first");
  CHECK_FALSE(second->note.error());
  CHECK(third->message == "third");
  CHECK(fourth->note.error().message() == kLeft);
  CHECK(fourth->note.error().code() == ErrorCode::linkBroken);
}

TEST_CASE("a message that breaks off is no message", "[message_stream_end]") {
  const std::string whole = onTheWire("some text");
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    CAPTURE(cut);
    Lone lone;
    lone.talk.start();
    const auto read = lone.talk.readMessage();
    lone.wire->put(1, whole.substr(0, cut));
    onLoop(*lone.loop, [] {});
    CHECK_FALSE(read->note.called());
    lone.wire->leave(1);
    REQUIRE(lone.talk.waitForAll());
    CHECK(read->note.error().message() == kLeft);
  }
}

TEST_CASE(
    "a message of another length than was asked for ends the message stream",
    "[message_stream_end]") {
  const size_t length = GENERATE(0, 4, 6, 1000);
  Lone lone(2000);
  lone.talk.start();
  const auto read = lone.talk.readInto(5);
  const auto next = lone.talk.readMessage();
  lone.wire->put(1, onTheWire(std::string(length, 'x')) + onTheWire("next"));
  REQUIRE(lone.talk.waitForAll());
  CHECK(
      read->note.error().message() ==
      "the peer sent a message of " + std::to_string(length) + " bytes where 5 were expected");
  CHECK(read->message == std::string(5, '\0'));
  CHECK(next->note.error());
  CHECK(lone.wire->hasLeft(0));
}

TEST_CASE("no memory is allocated for a message that is too long", "[message_stream_end]") {
  const uint64_t length =
      GENERATE(MessageStream::kMaxAllocation + 1, uint64_t{1} << 40, UINT64_MAX);
  Lone lone;
  lone.talk.start();
  const auto read = lone.talk.readMessage();
  lone.wire->put(1, headerOf(length));
  REQUIRE(lone.talk.waitForAll());
  CHECK(
      read->note.error().message() ==
      "the peer sent a message of " + std::to_string(length) + " bytes where at most " +
          std::to_string(MessageStream::kMaxAllocation) + " were expected");
}

TEST_CASE(
    "a message that has begun and does not go on ends the message stream", "[message_stream_end]") {
  const std::string whole = onTheWire("text");
  const size_t cut = GENERATE(0, 1, 7, 8, 11, 12);
  const size_t heldBack = GENERATE(0, 5);
  CAPTURE(cut, heldBack);
  Lone lone;
  lone.startImpatiently(milliseconds(20), heldBack);
  lone.wire->put(1, whole.substr(0, cut));
  auto read = lone.talk.readMessage();
  if (cut == whole.size()) {
    REQUIRE(lone.talk.waitForAll());
    CHECK(read->message == "text");
    lone.pause(); // nobody reads, so that nothing has stalled
    CHECK_FALSE(lone.wire->hasLeft(0));
    read = lone.talk.readMessage();
  }
  if (heldBack == 0 && cut % whole.size() == 0) {
    lone.pause();
    CHECK_FALSE(read->note.called());
    return;
  }
  REQUIRE(lone.talk.waitForAll());
  CHECK_THAT(read->note.error().message(), Catch::Contains("has begun and did not go on"));
  CHECK(lone.wire->hasLeft(0));
}

TEST_CASE("a message that goes on may take any time", "[message_stream_end]") {
  const std::string whole = onTheWire("a text that comes in pieces");
  Lone lone;
  lone.startImpatiently(milliseconds(200), 0);
  const auto read = lone.talk.readMessage();
  for (const char byte : whole) {
    lone.wire->put(1, std::string(1, byte));
    lone.pause(milliseconds(20)); // two and a half times as long in all
  }
  REQUIRE(lone.talk.waitForAll());
  CHECK(read->message == "a text that comes in pieces");
}

// ---- the first message ----------------------------------------------------------------------------

TEST_CASE("the first message is read ahead, and the next read gets it", "[message_stream_end]") {
  Lone lone(100000);
  const size_t length = GENERATE(size_t{0}, size_t{5}, size_t{MessageStream::kMaxFirstMessage});
  const CallbackNote& there = lone.talk.expectFirstMessage();
  lone.talk.start();
  onLoop(*lone.loop, [] {});
  CHECK_FALSE(there.called());
  lone.wire->put(1, onTheWire(std::string(length, 'x')) + onTheWire("second"));
  REQUIRE(lone.talk.waitForAll());
  CHECK_FALSE(there.error());
  const auto first = GENERATE(true, false) ? lone.talk.readMessage() : lone.talk.readInto(length);
  const auto second = lone.talk.readMessage();
  REQUIRE(lone.talk.waitForAll());
  CHECK(first->message == std::string(length, 'x'));
  CHECK(second->message == "second");
}

TEST_CASE(
    "a read that was asked for before the first message is there gets it", "[message_stream_end]") {
  Lone lone;
  lone.talk.expectFirstMessage();
  lone.talk.start();
  const auto first = lone.talk.readMessage();
  const auto second = lone.talk.readMessage();
  lone.wire->put(1, onTheWire("first") + onTheWire("second"));
  REQUIRE(lone.talk.waitForAll());
  CHECK(first->message == "first");
  CHECK(second->message == "second");
}

TEST_CASE(
    "a first message that is too long, or does not come, is an error", "[message_stream_end]") {
  Lone lone;
  const CallbackNote& there = lone.talk.expectFirstMessage();
  lone.talk.start();
  std::string expected = kLeft;
  SECTION("too long") {
    lone.wire->put(1, headerOf(MessageStream::kMaxFirstMessage + 1));
    expected = "the peer sent a message of 65537 bytes where at most 65536 were expected";
  }
  SECTION("the peer leaves") {
    lone.wire->leave(1);
  }
  SECTION("the peer leaves in the middle") {
    lone.wire->put(1, onTheWire("first").substr(0, 10));
    lone.wire->leave(1);
  }
  SECTION("closed") {
    lone.talk->close();
    expected = "the connection was closed";
  }
  REQUIRE(lone.talk.waitForAll());
  CHECK(there.error().message() == expected);
}

TEST_CASE("a first message can be read though the peer has left since", "[message_stream_end]") {
  Lone lone;
  lone.talk.expectFirstMessage();
  lone.talk.start();
  lone.wire->put(1, onTheWire("first"));
  lone.wire->leave(1);
  REQUIRE(lone.talk.waitForAll());
  const auto first = lone.talk.readMessage();
  const auto second = lone.talk.readMessage();
  REQUIRE(lone.talk.waitForAll());
  CHECK(first->message == "first");
  CHECK(second->note.error().message() == kLeft);
}

TEST_CASE(
    "a first message of another length than the first read asks for is an error",
    "[message_stream_end]") {
  Lone lone;
  lone.talk.expectFirstMessage();
  lone.talk.start();
  lone.wire->put(1, onTheWire("first"));
  REQUIRE(lone.talk.waitForAll());
  const auto read = lone.talk.readInto(6);
  REQUIRE(lone.talk.waitForAll());
  CHECK(
      read->note.error().message() == "the peer's first message has 5 bytes where 6 were expected");
}

// ---- all message streams of a context -------------------------------------------------------------

TEST_CASE(
    "all message streams can be closed at once, and their end waited for", "[message_stream_end]") {
  const auto loop = Loop::start("test");
  CallbackLedger ledger;
  const auto all = std::make_shared<MessageStreams>();
  for (int i = 0; i < 10; ++i) {
    all->open(loop)->readMessage(
        [sent = ledger.expect("a read")](const Error& error, const char*, size_t) { sent(error); });
  }
  all->closeAll();
  all->awaitEnd();
  CHECK(ledger.allCalled());
  all->awaitEnd();
}

TEST_CASE(
    "a message stream that is opened too late is closed from the beginning",
    "[message_stream_end]") {
  const auto loop = Loop::start("test");
  CallbackLedger ledger;
  const auto all = std::make_shared<MessageStreams>();
  all->closeAll();
  CallbackNote& note = ledger.note("a read");
  all->open(loop)->readMessage(
      [&note](const Error& error, const char*, size_t) { note.add(error); });
  REQUIRE(ledger.waitForAll());
  CHECK(note.error().code() == ErrorCode::shutDown);
  all->awaitEnd();
}

TEST_CASE("a message stream that was closed is kept by nobody", "[message_stream_end]") {
  const auto loop = Loop::start("test");
  const auto all = std::make_shared<MessageStreams>();
  std::weak_ptr<MessageStream> watch;
  {
    const auto stream = all->open(loop);
    watch = stream;
    stream->close();
  }
  all->awaitEnd();
  onLoop(*loop, [] {});
  CHECK(watch.expired());
}
