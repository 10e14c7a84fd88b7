#include "backend/transport/message_stream.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "test/unit/support/forwarding_stream.h"
#include "test/unit/support/message_stream_under_test.h"
#include "test/unit/support/notifier.h"
#include "test/unit/support/on_loop.h"
#include "test/unit/support/seeds.h"

using namespace torchwire;

namespace {

// Two message streams with each other.
struct Talk {
  explicit Talk(size_t capacity = 64, unsigned seed = 1) : wire(MemoryWire::make(capacity, seed)) {
    left.start();
    right.start();
  }

  const std::shared_ptr<Loop> loop = Loop::start("test");
  const std::shared_ptr<MemoryWire> wire;
  MessageStreamUnderTest left{loop, wire, 0}, right{loop, wire, 1};
};

std::string textOf(size_t length, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(length, '\0');
  std::generate(text.begin(), text.end(), [&] { return static_cast<char>(random()); });
  return text;
}

} // namespace

TEST_CASE("a message arrives as it was written", "[message_stream]") {
  Talk talk;
  const auto read = talk.right.readMessage();
  talk.left.write("a message");
  REQUIRE(talk.right.waitForAll());
  REQUIRE(talk.left.waitForAll());
  CHECK_FALSE(read->note.error());
  CHECK(read->message == "a message");
}

TEST_CASE("messages may have any length, also none", "[message_stream]") {
  Talk talk(7);
  std::vector<MessageStreamUnderTest::ReadPtr> reads;
  for (const size_t length : {0, 1, 7, 8, 9, 0, 0, 5000, 1}) {
    reads.push_back(length % 2 == 0 ? talk.right.readMessage() : talk.right.readInto(length));
    talk.left.write(textOf(length, 1));
  }
  REQUIRE(talk.right.waitForAll());
  REQUIRE(talk.left.waitForAll());
  for (const auto& read : reads) {
    CHECK_FALSE(read->note.error());
    CHECK(read->message == textOf(read->message.size(), 1));
  }
  CHECK(reads[7]->message.size() == 5000);
}

TEST_CASE("what is asked before the connection stands is done once it does", "[message_stream]") {
  const auto loop = Loop::start("test");
  const auto wire = MemoryWire::make(64);
  MessageStreamUnderTest left(loop, wire, 0), right(loop, wire, 1);
  const auto read = right.readMessage();
  left.write("early");
  onLoop(*loop, [] {});
  CHECK_FALSE(read->note.called());
  left.start();
  right.start();
  REQUIRE(right.waitForAll());
  REQUIRE(left.waitForAll());
  CHECK(read->message == "early");
}

TEST_CASE("a message travels as its length and its bytes", "[message_stream]") {
  const auto loop = Loop::start("test");
  const auto wire = MemoryWire::make(1000);
  MessageStreamUnderTest talk(loop, wire);
  talk.start();
  talk.write("one");
  talk.writeFromMemory("");
  talk.write("three");
  REQUIRE(talk.waitForAll());
  CHECK(wire->take(1) == onTheWire("one") + onTheWire("") + onTheWire("three"));
}

TEST_CASE("a write is over when its last byte has gone, and not before", "[message_stream]") {
  const auto loop = Loop::start("test");
  const auto wire = MemoryWire::make(12);
  MessageStreamUnderTest talk(loop, wire);
  talk.start();
  const CallbackNote& first = talk.write("four");
  const CallbackNote& second = talk.write("more");
  REQUIRE(talk.waitFor(first));
  for (int i = 0; i < 20; ++i) {
    onLoop(*loop, [] {});
  }
  CHECK_FALSE(second.called());
  CHECK(wire->take(1) == onTheWire("four"));
  REQUIRE(talk.waitFor(second));
  CHECK(wire->take(1) == onTheWire("more"));
}

TEST_CASE("whatever two sides say to each other arrives, whole and in order", "[message_stream]") {
  for (const unsigned seed : seeds(60)) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Talk talk(1 + random() % 200, seed);
    constexpr int kMessages = 60;
    struct Way {
      MessageStreamUnderTest& from;
      MessageStreamUnderTest& to;
      std::vector<std::string> messages = {};
      std::vector<MessageStreamUnderTest::ReadPtr> reads = {};
    };
    Way ways[] = {{talk.left, talk.right}, {talk.right, talk.left}};
    // Each way from a thread and from the loop, one after the other, in turns of random lengths.
    std::vector<std::thread> threads;
    for (Way& way : ways) {
      const unsigned own = static_cast<unsigned>(random());
      threads.emplace_back([&way, &talk, own] {
        std::mt19937 choice(own);
        for (int i = 0; i < kMessages; ++i) {
          way.messages.push_back(textOf(choice() % 300, static_cast<unsigned>(i)));
        }
        size_t written = 0, asked = 0;
        while (asked < kMessages) {
          const auto some = [&] {
            for (size_t turn = choice() % 8; turn > 0 && written < kMessages; --turn) {
              const std::string& message = way.messages[written++];
              choice() % 2 == 0 ? way.from.write(message) : way.from.writeFromMemory(message);
            }
            for (size_t turn = choice() % 8; turn > 0 && asked < kMessages; --turn) {
              way.reads.push_back(
                  choice() % 2 == 0 ? way.to.readMessage()
                                    : way.to.readInto(way.messages[asked].size()));
              ++asked;
            }
          };
          if (choice() % 2 == 0) {
            onLoop(*talk.loop, some);
          } else {
            some();
          }
        }
        for (; written < kMessages; ++written) {
          way.from.write(way.messages[written]);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    REQUIRE(talk.left.waitForAll());
    REQUIRE(talk.right.waitForAll());
    for (const Way& way : ways) {
      for (size_t i = 0; i < kMessages; ++i) {
        REQUIRE(way.reads[i]->message == way.messages[i]);
      }
    }
    CHECK(talk.left.misplaced() + talk.right.misplaced() == 0);
  }
}

TEST_CASE("callbacks come in the order in which they were asked for", "[message_stream]") {
  Talk talk(50);
  std::vector<std::string> writes;
  for (size_t length = 1; length < 100; ++length) {
    writes.push_back(talk.left.write(std::string(length, 'x')).what());
    talk.right.readMessage();
  }
  REQUIRE(talk.left.waitForAll());
  REQUIRE(talk.right.waitForAll());
  CHECK(talk.left.order() == writes);
}

TEST_CASE("a callback may ask for more", "[message_stream]") {
  const auto loop = Loop::start("test");
  const auto wire = MemoryWire::make(64);
  CallbackLedger ledger;
  const auto last = ledger.expect("the hundredth message");
  MessageStreamUnderTest left(loop, wire, 0), right(loop, wire, 1);
  left.start();
  right.start();
  std::function<void(int)> next = [&](int count) {
    right->readMessage([&, count](const Error& error, const char*, size_t) {
      count == 100 || error ? last(error) : next(count + 1);
    });
    left->write(std::vector<char>(10, 'x'), [](const Error&) {});
  };
  next(1);
  CHECK(ledger.waitForAll());
}

TEST_CASE("what a callback holds goes before the next is called", "[message_stream]") {
  const auto loop = Loop::start("test");
  const auto wire = MemoryWire::make(1000);
  CallbackLedger ledger;
  MessageStreamUnderTest talk(loop, wire);
  talk.start();
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = held;
  CallbackNote& note = ledger.note("the second write");
  std::atomic<bool> gone{false};
  onLoop(*loop, [&] {
    talk->write(std::vector<char>(1), [held = std::move(held)](const Error&) {});
    talk->write(std::vector<char>(1), [&](const Error& error) {
      gone = watch.expired();
      note.add(error);
    });
  });
  REQUIRE(ledger.waitForAll());
  CHECK(gone);
}

TEST_CASE("large messages leave the loop to others in between", "[message_stream]") {
  constexpr size_t kLength = size_t{32} << 20;
  // Gives as much as is asked for, without end.
  struct Endless final : Stream {
    void start(std::function<void()>) override {}
    void setInterest(bool, bool) override {}
    Progress write(const iovec*, size_t) override {
      return {};
    }
    Progress read(void* into, size_t length) override {
      const std::string header = headerOf(kLength);
      if (length == header.size()) {
        std::copy(header.begin(), header.end(), static_cast<char*>(into));
      }
      return {std::min(length, size_t{1} << 20), {}};
    }
  };
  CallbackLedger ledger;
  CallbackNote& note = ledger.note("the read");
  std::vector<char> into(kLength);
  const auto loop = Loop::start("test");
  MessageStreamUnderTest talk(loop, MemoryWire::make(1));
  int turns = 0;
  std::atomic<bool> over{false};
  std::function<void()> other = [&] {
    if (!over) {
      ++turns;
      loop->post(other);
    }
  };
  onLoop(*loop, [&] {
    talk->start(std::make_unique<Endless>());
    talk->readInto(into.data(), into.size(), [&](const Error& error, const char*, size_t) {
      over = true;
      note.add(error);
    });
    other();
  });
  CHECK(ledger.waitForAll());
  over = true;
  onLoop(*loop, [] {});
  CHECK_FALSE(note.error());
  CHECK(turns > 5);
}

// ---- a stream that takes its time to write ---------------------------------------------------------

namespace {

/// Whether a write is under way, and may end.
struct Gate {
  Notifier notifier;
  std::atomic<bool> isEntered{false}, isOpen{false};

  void pass() {
    isEntered = true;
    notifier.notify();
    notifier.waitUntil([&] { return isOpen.load(); });
  }
  void open() {
    isOpen = true;
    notifier.notify();
  }
  bool awaitEntrance() {
    return notifier.waitUntil([&] { return isEntered.load(); });
  }
};

/// Writes as long as the gate is closed, as one that encrypts a lot.
class GatedStream final : public ForwardingStream {
 public:
  GatedStream(std::unique_ptr<Stream> inner, Gate& gate)
      : ForwardingStream(std::move(inner)), gate_(gate) {}

  Progress write(const iovec* parts, size_t count) override {
    gate_.pass();
    return ForwardingStream::write(parts, count);
  }

 private:
  Gate& gate_;
};

/// A thread other than the loop's is in a write.
struct Writing {
  Writing() {
    onLoop(
        *loop, [&] { talk->start(std::make_unique<GatedStream>(wire->stream(*loop, 0), gate)); });
    writer = std::thread([&] { note = &talk.write("what is written"); });
    REQUIRE(gate.awaitEntrance());
  }
  void finish() {
    gate.open();
    writer.join();
    REQUIRE(talk.waitForAll());
  }

  Gate gate;
  const std::shared_ptr<Loop> loop = Loop::start("test");
  const std::shared_ptr<MemoryWire> wire = MemoryWire::make(1000);
  MessageStreamUnderTest talk{loop, wire};
  const CallbackNote* note = nullptr;
  std::thread writer;
};

} // namespace

TEST_CASE("while a thread writes, the loop reads", "[message_stream]") {
  Writing writing;
  std::string heard;
  for (const char* text : {"one", "two"}) { // the second once the loop is at rest
    const auto read = writing.talk.readMessage();
    writing.wire->put(1, onTheWire(text));
    CHECK(writing.talk.waitFor(read->note));
    heard += read->message;
  }
  CHECK(heard == "onetwo");
  writing.finish();
  CHECK_FALSE(writing.note->error());
  CHECK(writing.wire->take(1) == onTheWire("what is written"));
}

TEST_CASE("what is asked while a thread writes is served then", "[message_stream]") {
  Writing writing;
  const CallbackNote& more = writing.talk.write("more");
  writing.finish();
  CHECK_FALSE(more.error());
  CHECK(writing.wire->take(1) == onTheWire("what is written") + onTheWire("more"));
}

TEST_CASE("a stream that ends while a thread writes is kept until then", "[message_stream]") {
  Writing writing;
  const auto read = writing.talk.readMessage();
  const CallbackNote& more = writing.talk.write("more");
  if (GENERATE(true, false)) {
    writing.talk->close();
  } else {
    writing.wire->leave(1);
  }
  onLoop(*writing.loop, [] {});
  CHECK_FALSE(writing.wire->hasLeft(0));
  writing.finish();
  CHECK(read->note.error());
  CHECK(more.error());
  CHECK(writing.wire->hasLeft(0));
}
