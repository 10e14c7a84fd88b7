// Two workers that dial each other at the same time: whatever the order of events, one link remains
// and no frame is lost or doubled.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>

#include "backend/link/link_manager.h"
#include "test/unit/support/memory_worker.h"

using namespace torchwire;
using Style = MemoryNetwork::Style;
using Texts = std::vector<std::string>;

namespace {

// Makes every sequence of choices once, in the order of an odometer.
class EveryChoice {
 public:
  size_t choose(size_t options) {
    if (depth_ == digits_.size()) {
      digits_.push_back({0, options});
    }
    return digits_[depth_++].chosen;
  }
  // False once all sequences have been made.
  bool next() {
    depth_ = 0;
    while (!digits_.empty() && digits_.back().chosen + 1 == digits_.back().options) {
      digits_.pop_back();
    }
    if (digits_.empty()) {
      return false;
    }
    ++digits_.back().chosen;
    return true;
  }
  std::string toString() const {
    std::string text;
    for (const Digit& digit : digits_) {
      text += std::to_string(digit.chosen) + "/" + std::to_string(digit.options) + " ";
    }
    return text;
  }

 private:
  struct Digit {
    size_t chosen;
    size_t options;
  };
  std::vector<Digit> digits_;
  size_t depth_ = 0;
};

// No attempt is made a second time within a test.
WorkerSettings withoutRetries() {
  WorkerSettings settings;
  settings.limits.retryDelay = std::chrono::milliseconds(100000);
  return settings;
}

Texts sorted(Texts texts) {
  std::sort(texts.begin(), texts.end());
  return texts;
}

// Two workers that each send the other some frames at moments that the chooser picks.
// Returns what went wrong; empty: nothing.
std::string outcomeOf(int framesEach, const MemoryNetwork::Chooser& choose) {
  World world;
  MemoryWorker a(world, 0, withoutRetries());
  MemoryWorker b(world, 1, withoutRetries());
  introduce(a, b);
  Texts expected;
  for (int i = 0; i < framesEach; ++i) {
    expected.push_back(std::to_string(i));
  }
  // One chain of steps for each worker: its own sends keep their order.
  std::function<void(MemoryWorker&, MemoryWorker&, int)> sendNext = [&](MemoryWorker& from,
                                                                        MemoryWorker& to, int i) {
    from.send(to, std::to_string(i));
    if (i + 1 < framesEach) {
      world.network.schedule([&, i] { sendNext(from, to, i + 1); });
    }
  };
  world.network.schedule([&] { sendNext(a, b, 0); });
  world.network.schedule([&] { sendNext(b, a, 0); });
  world.network.deliverAll(choose);

  std::string wrong;
  if (!world.ledger.allCalled()) {
    wrong += "a send is still waiting; ";
  }
  if (a.texts() != expected || b.texts() != expected) {
    const bool order = sorted(a.texts()) == expected && sorted(b.texts()) == expected;
    wrong += order ? "frames arrived out of order; " : "frames were lost or doubled; ";
  }
  if (!a.losses().empty() || !b.losses().empty()) {
    wrong += "a link was lost; ";
  }
  if (a.stateOf(b) != PeerState::connected || b.stateOf(a) != PeerState::connected) {
    wrong += std::string("a worker is ") + nameOf(a.stateOf(b)) + " and the other " +
        nameOf(b.stateOf(a)) + "; ";
  }
  if (world.network.openLinks() != 1) {
    wrong += std::to_string(world.network.openLinks()) + " links are open; ";
  }
  if (!wrong.empty()) { // the sends that hang are part of what is wrong
    world.ledger.forgive();
  }
  return wrong;
}

} // namespace

TEST_CASE("two dials at once settle on one link in every order of events", "[link_manager_tie]") {
  EveryChoice choices;
  int runs = 0;
  std::map<std::string, int> wrong;
  std::string example;
  do {
    ++runs;
    const std::string outcome =
        outcomeOf(1, [&](size_t options) { return choices.choose(options); });
    if (!outcome.empty()) {
      ++wrong[outcome];
      example = example.empty() ? outcome + "after the choices " + choices.toString() : example;
    }
  } while (choices.next());
  CAPTURE(runs, wrong, example);
  CHECK(wrong.empty());
}

TEST_CASE("two dials at once lose no frame under random orders of events", "[link_manager_tie]") {
  std::map<std::string, int> wrong;
  unsigned example = 0;
  for (unsigned seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    const std::string outcome =
        outcomeOf(4, [&](size_t options) { return static_cast<size_t>(random()) % options; });
    if (!outcome.empty()) {
      ++wrong[outcome];
      example = example == 0 ? seed : example;
    }
  }
  CAPTURE(wrong, example);
  CHECK(wrong.empty());
}

TEST_CASE("the dial of the lower rank stands", "[link_manager_tie]") {
  World world;
  MemoryWorker worker(world, 1, withoutRetries());
  const auto helloWhileDialled = [&](WorkerId peer) {
    // A peer that takes the worker's dial but, before it answers, says hello itself.
    world.network.context(recordOf(peer).address).listen([](const std::shared_ptr<Link>& link) {
      link->receive([link](const Error&, const IncomingFrame&) {});
    });
    worker.links().addPeer(recordOf(peer));
    worker.links().send(peer, textFrame("queued"), world.ledger.expect("the send"));
    RawPeer hello = RawPeer::dial(world, worker);
    hello.say(helloOf(recordOf(peer), worker).encode(FrameKind::hello));
    world.network.deliverAll();
    return hello;
  };
  worker.start();
  const RawPeer lower = helloWhileDialled(0);
  CHECK(lower.heard() == std::vector{FrameKind::welcome, FrameKind::request});
  const RawPeer higher = helloWhileDialled(2);
  REQUIRE(higher.heard() == std::vector{FrameKind::refuse});
  CHECK(Refusal::decode(higher.lastFrame()).code == ErrorCode::duplicateLink);
}

TEST_CASE(
    "a hello that comes after the tie was settled does not cost the link", "[link_manager_tie]") {
  World world;
  MemoryWorker a(world, 0, withoutRetries());
  MemoryWorker b(world, 1, withoutRetries());
  introduce(a, b);
  b.send(a, "from b");
  a.send(b, "from a");
  // b's hello is held up until a's own dial has been answered.
  const auto onLinkOfA = [](size_t options) { return options - 1; };
  while (a.stateOf(b) != PeerState::connected) {
    REQUIRE(world.network.deliverOne(onLinkOfA));
  }
  world.network.deliverAll();
  CHECK(a.losses().empty());
  CHECK(b.losses().empty());
  CHECK(a.texts() == Texts{"from b"});
  CHECK(b.texts() == Texts{"from a"});
}

TEST_CASE("a dial that a peer's hello overtook is given up", "[link_manager_tie]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  b.send(a, "from b");
  // The whole handshake on b's link happens while a's own dial is on its way into the network.
  world.network.duringNextDial([&] { world.network.deliverAll(); });
  a.send(b, "from a");
  world.network.deliverAll();
  CHECK(a.losses().empty());
  CHECK(b.losses().empty());
  CHECK(a.texts() == Texts{"from b"});
  CHECK(b.texts() == Texts{"from a"});
  CHECK(world.network.openLinks() == 1);
}

TEST_CASE("a dial refused for the peer's own is repeated if that one fails", "[link_manager_tie]") {
  World world;
  MemoryWorker a(world, 0);
  MemoryWorker b(world, 1);
  introduce(a, b);
  world.network.refuseDials(b.record().address, 1000000); // a firewall: only b can dial a
  const CallbackNote& fromA = a.send(b, "from a");
  const CallbackNote& fromB = b.send(a, "from b");
  REQUIRE(world.network.deliverUntil([&] { return fromB.called() && fromA.called(); }));
  CHECK(fromB.succeeded());
  CHECK(world.network.deliverUntil([&] { return a.texts() == Texts{"from b"}; }));
}

TEST_CASE("three workers that all dial each other are all connected", "[link_manager_tie]") {
  const unsigned seed = GENERATE(range(1u, 30u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  World world;
  std::vector<std::unique_ptr<MemoryWorker>> workers;
  for (WorkerId id = 0; id < 3; ++id) {
    workers.push_back(std::make_unique<MemoryWorker>(world, id));
  }
  startTogether(workers);
  for (const auto& from : workers) {
    for (const auto& to : workers) {
      if (from != to) {
        from->send(*to, "from " + from->record().name);
      }
    }
  }
  const auto choose = [&](size_t options) { return static_cast<size_t>(random()) % options; };
  REQUIRE(world.ledger.notifier().waitUntil([&] {
    world.network.deliverAll(choose);
    return world.ledger.allCalled();
  }));
  for (const auto& worker : workers) {
    CHECK(worker->arrivals().size() == 2);
  }
  // Those that had to give way are closed by the timer.
  CHECK(world.network.deliverUntil([&] { return world.network.openLinks() == 3; }));
}

TEST_CASE("among many dials the higher rank waits for those of the lower", "[link_manager_tie]") {
  World world;
  WorkerSettings settings = withoutRetries();
  settings.limits.manyDials = 1;
  settings.limits.precedence = std::chrono::milliseconds(100000);
  MemoryWorker late(world, 9, settings);
  MemoryWorker first(world, 0);
  MemoryWorker second(world, 1);
  introduce(late, first);
  introduce(late, second);
  late.send(first, "to the first");
  late.send(second, "to the second");
  world.network.deliverAll();
  CHECK(first.texts() == Texts{"to the first"});
  CHECK(second.texts().empty());
  CHECK(late.stateOf(second) == PeerState::dialing);
  CHECK(world.network.openLinks() == 1);
  second.send(late, "from the second");
  world.network.deliverAll();
  CHECK(late.texts() == Texts{"from the second"});
  CHECK(second.texts() == Texts{"to the second"});
}

TEST_CASE("a dial that waited for the peer's is made if none comes", "[link_manager_tie]") {
  World world;
  WorkerSettings settings;
  settings.limits.manyDials = 0;
  settings.limits.precedence = std::chrono::milliseconds(5);
  MemoryWorker late(world, 9, settings);
  MemoryWorker early(world, 0);
  introduce(late, early);
  const CallbackNote& sent = late.send(early, "after a while");
  CHECK(world.network.deliverUntil([&] { return early.texts() == Texts{"after a while"}; }));
  CHECK(sent.succeeded());
}

TEST_CASE("a worker that makes itself known waits for nobody", "[link_manager_tie]") {
  World world;
  WorkerSettings settings;
  settings.limits.manyDials = 0;
  settings.limits.precedence = std::chrono::milliseconds(100000);
  MemoryWorker late(world, 9, settings);
  MemoryWorker early(world, 0);
  introduce(late, early);
  late.links().connect(early.record().id, world.ledger.expect("the link"));
  world.network.deliverAll();
  CHECK(late.stateOf(early) == PeerState::connected);
}
