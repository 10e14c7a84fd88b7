// The memory and faulty links keep the contract of link.h: what the other tests rest on.
#include "test/unit/support/memory_link.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <optional>

#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/memory_worker.h"
#include "test/unit/support/simulated_faulty_link.h"

using namespace torchwire;
using Style = MemoryNetwork::Style;

namespace {

constexpr const char* kA = "memory://a";
constexpr const char* kB = "memory://b";

// A link from a to b, in which the test holds both sides.
struct Pair {
  explicit Pair(World& w) : Pair(w, w.network.context(kA), w.network.context(kB)) {}
  Pair(World& w, LinkContext& a, LinkContext& b) : world(w) {
    b.listen([this](std::shared_ptr<Link> link) {
      {
        MutexLock lock(mutex);
        accepted = std::move(link);
      }
      world.ledger.notifier().notify();
    });
    dialer = a.dial({.address = kB});
    REQUIRE(world.network.deliverUntil([this] { return accepter() != nullptr; }));
  }

  std::shared_ptr<Link> accepter() {
    MutexLock lock(mutex);
    return accepted;
  }
  // Expects a frame with this text, or an error if there is none.
  CallbackNote& receive(Link& link, const std::optional<std::string>& text) {
    CallbackNote& note = world.ledger.note("receive " + text.value_or("an error"));
    link.receive([&note, text](const Error& error, IncomingFrame frame) {
      const bool asExpected = error ? !text.has_value() : text == textOf(frame);
      note.add(asExpected ? error : Error(ErrorCode::badFrame, "not what the test expects"));
    });
    return note;
  }
  CallbackNote& send(Link& link, const std::string& text) {
    CallbackNote& note = world.ledger.note("send " + text);
    link.send(textFrame(text), CallbackLedger::expect(note));
    return note;
  }
  bool waitForAll() {
    return world.network.deliverUntil([this] { return world.ledger.allCalled(); });
  }

  World& world;
  std::shared_ptr<Link> dialer;
  Mutex mutex{LockRank::test};
  std::shared_ptr<Link> accepted GUARDED_BY(mutex);
};

} // namespace

TEST_CASE("frames arrive in order in both directions", "[memory_link]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  Pair pair(world);
  for (const char* text : {"1", "2", "3"}) {
    pair.send(*pair.dialer, text);
    pair.send(*pair.accepter(), text);
  }
  for (const char* text : {"1", "2", "3"}) {
    CallbackNote& there = pair.receive(*pair.accepter(), text);
    CallbackNote& back = pair.receive(*pair.dialer, text);
    CHECK(pair.waitForAll());
    CHECK(there.succeeded());
    CHECK(back.succeeded());
  }
}

TEST_CASE("a link that is closed fails what is pending on both sides", "[memory_link]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  Pair pair(world);
  CallbackNote& here = pair.receive(*pair.dialer, std::nullopt);
  CallbackNote& there = pair.receive(*pair.accepter(), std::nullopt);
  pair.dialer->close();
  pair.dialer->close();
  CHECK(pair.waitForAll());
  CHECK(here.error().code() == ErrorCode::linkBroken);
  CHECK(there.error().code() == ErrorCode::linkBroken);
  CallbackNote& later = pair.send(*pair.accepter(), "too late");
  CHECK(pair.waitForAll());
  CHECK(later.error().code() == ErrorCode::linkBroken);
  CHECK(world.network.openLinks() == 0);
}

TEST_CASE("what was sent before the close arrives before the end of the link", "[memory_link]") {
  World world;
  Pair pair(world);
  pair.send(*pair.dialer, "last words");
  pair.dialer.reset();
  CallbackNote& words = pair.receive(*pair.accepter(), "last words");
  CHECK(pair.waitForAll());
  CHECK(words.succeeded());
  pair.receive(*pair.accepter(), std::nullopt);
  CHECK(pair.waitForAll());
}

TEST_CASE("a dial of an address without a listener fails at its first operation", "[memory_link]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  const auto link = world.network.context(kA).dial({.address = "memory://nobody"});
  CallbackNote& sent = world.ledger.note("send");
  CallbackNote& received = world.ledger.note("receive");
  link->send(textFrame("hello?"), CallbackLedger::expect(sent));
  link->receive([&](const Error& error, IncomingFrame) { received.add(error); });
  CHECK(world.network.deliverUntil([&] { return world.ledger.allCalled(); }));
  CHECK(sent.error().message() == "nobody listens at memory://nobody");
  CHECK(received.error().code() == ErrorCode::nobodyListens);
}

TEST_CASE("a context that has ended calls nobody any more", "[memory_link]") {
  const Style style = GENERATE(Style::pumped, Style::synchronous, Style::threaded);
  CAPTURE(nameOf(style));
  World world(style);
  Pair pair(world);
  CallbackNote& here = pair.receive(*pair.dialer, std::nullopt);
  world.network.context(kA).join();
  CHECK(here.calls() == 1);
  world.network.context(kA).join();
}

TEST_CASE("a context waits for what a callback begins while it ends", "[memory_link]") {
  std::atomic<bool> runs{false};
  std::atomic<bool> hasEnded{false};
  std::atomic<bool> isLate{false};
  World world(Style::threaded);
  Notifier& notifier = world.ledger.notifier();
  Pair pair(world);
  pair.send(*pair.dialer, "the last one");
  pair.dialer->close();
  pair.accepter()->receive([&](const Error&, IncomingFrame) {
    runs = true;
    notifier.waitUntil([&] { return world.network.openLinks() == 0; });
    pair.accepter()->receive([&](const Error&, IncomingFrame) {
      isLate = notifier.waitUntil([&] { return hasEnded.load(); }, Notifier::kGlance);
    });
  });
  REQUIRE(world.network.deliverUntil([&] { return runs.load(); }));
  world.network.context(kB).join();
  hasEnded = true;
  notifier.notify();
  CHECK_FALSE(notifier.waitUntil([&] { return isLate.load(); }, 2 * Notifier::kGlance));
}

TEST_CASE("the test chooses which of the possible steps comes next", "[memory_link]") {
  World world;
  std::string order;
  for (const char step : {'a', 'b', 'c'}) {
    world.network.schedule([&order, step] { order += step; });
  }
  world.network.deliverOne([](size_t options) { return options - 1; });
  world.network.deliverOne();
  CHECK(order == "ca");
  world.network.deliverAll();
  CHECK(order == "cab");
  CHECK_FALSE(world.network.deliverOne());
}

TEST_CASE("frames under way are lost when the network is cut", "[memory_link]") {
  World world;
  Pair pair(world);
  pair.send(*pair.dialer, "lost");
  world.network.cut();
  pair.receive(*pair.accepter(), std::nullopt);
  CHECK(pair.waitForAll());
}

TEST_CASE("a faulty link breaks after as many frames as its plan says", "[memory_link]") {
  World world;
  SimulatedFaultyContext faulty(world.network.context(kA), world.timer, {.breakAfter = 2});
  Pair pair(world, faulty, world.network.context(kB));
  CHECK(pair.send(*pair.dialer, "1").succeeded());
  CHECK(pair.send(*pair.dialer, "2").succeeded());
  CHECK(pair.send(*pair.dialer, "3").error().code() == ErrorCode::linkBroken);
  CHECK(pair.send(*pair.dialer, "4").error().code() == ErrorCode::linkBroken);
  pair.receive(*pair.accepter(), "1");
  CHECK(pair.waitForAll());
}

TEST_CASE("a delayed frame holds up those behind it", "[memory_link]") {
  World world;
  SimulatedFaultyContext faulty(world.network.context(kA), world.timer, {.delaySend = 0.5});
  Pair pair(world, faulty, world.network.context(kB));
  std::vector<CallbackNote*> notes;
  for (int i = 0; i < 20; ++i) {
    notes.push_back(&pair.send(*pair.dialer, std::to_string(i)));
  }
  for (int i = 0; i < 20; ++i) {
    CallbackNote& note = pair.receive(*pair.accepter(), std::to_string(i));
    REQUIRE(world.network.deliverUntil([&] { return note.called(); }));
    CHECK(note.succeeded());
  }
  CHECK(pair.waitForAll());
}

TEST_CASE("a faulty link that is closed fails what it holds back", "[memory_link]") {
  World world;
  SimulatedFaultPlan plan{.delaySend = 1, .maxDelay = std::chrono::hours(1)};
  SimulatedFaultyContext faulty(world.network.context(kA), world.timer, plan);
  Pair pair(world, faulty, world.network.context(kB));
  CallbackNote& held = pair.send(*pair.dialer, "held back");
  SECTION("by itself") {
    pair.dialer->close();
  }
  SECTION("with its context") {
    faulty.join();
  }
  CHECK(held.error().code() == ErrorCode::linkBroken);
}

TEST_CASE("the same seed makes the same faults", "[memory_link]") {
  const SimulatedFaultPlan plan{.seed = 5, .breakAtSend = 0.2, .loseAtSend = 0.2, .delaySend = 0.2};
  SimulatedFaults one(plan);
  SimulatedFaults two(plan);
  for (int n = 1; n < 100; ++n) {
    CHECK(one.ofSend(n) == two.ofSend(n));
  }
  one.heal();
  for (int n = 1; n < 100; ++n) {
    CHECK(one.ofSend(n) == SimulatedFaults::Fate::pass);
  }
}
