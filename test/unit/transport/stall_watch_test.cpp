#include "backend/transport/stall_watch.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "test/unit/support/notifier.h"
#include "test/unit/support/on_loop.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kPatience{200};

struct Watched {
  ~Watched() {
    onLoop(*loop, [&] {
      watch.reset();
      timer.reset();
    });
  }

  void observe(bool hasBegun, uint64_t arrived) {
    watch->observe(hasBegun, arrived);
  }
  /// On the loop, and again each time it says how soon, unless the watch says that it has stalled.
  void play(std::function<milliseconds()> step) {
    onLoop(*loop, [&] {
      watch = std::make_unique<StallWatch>(*loop, kPatience, [this] {
        stalled = true;
        timer->stop();
        watch.reset();
        notifier.notify();
      });
      timer = std::make_unique<LoopTimer>(*loop);
      next = std::move(step);
      go();
    });
  }
  void go() {
    const milliseconds after = next();
    if (after.count() == 0) {
      over = true;
      notifier.notify();
    } else {
      timer->start(after, [this] { go(); });
    }
  }
  bool await(const std::atomic<bool>& flag) {
    return notifier.waitUntil([&] { return flag.load(); });
  }
  /// Looks so many times, 30 ms apart.
  bool stallsIn(int looks, std::function<void(int)> look) {
    play([this, looks, look = std::move(look), step = 0]() mutable {
      look(step);
      return ++step < looks ? milliseconds(30) : milliseconds(0);
    });
    notifier.waitUntil([&] { return over || stalled; });
    return stalled;
  }

  const std::shared_ptr<Loop> loop = Loop::start("stall");
  Notifier notifier;
  std::unique_ptr<StallWatch> watch;
  std::unique_ptr<LoopTimer> timer;
  std::function<milliseconds()> next;
  std::atomic<bool> stalled{false}, over{false};
};

} // namespace

TEST_CASE("a message that has begun and does not go on has stalled", "[stall_watch]") {
  Watched watched;
  watched.play([&] {
    watched.observe(true, 10); // however often it is looked at
    return milliseconds(20);
  });
  CHECK(watched.await(watched.stalled));
}

TEST_CASE("a message that goes on has not stalled, however long it takes", "[stall_watch]") {
  Watched watched;
  CHECK_FALSE(
      watched.stallsIn(30, [&](int step) { watched.observe(true, static_cast<uint64_t>(step)); }));
}

TEST_CASE("where no message has begun nothing stalls", "[stall_watch]") {
  Watched watched;
  CHECK_FALSE(watched.stallsIn(30, [&](int step) { watched.observe(step == 0, 10); }));
}

TEST_CASE("what has come while the loop stood still counts", "[stall_watch]") {
  Watched watched;
  int steps = 0;
  watched.play([&] {
    if (++steps == 1) {
      watched.observe(true, 10);
      return milliseconds(1);
    }
    if (steps == 2) { // all timers are due when this returns, before the sockets are looked at
      std::atomic<bool> never{false};
      Notifier().waitUntil([&] { return never.load(); }, 2 * kPatience);
      return milliseconds(50);
    }
    watched.observe(true, 20);
    watched.observe(false, 20);
    return milliseconds(0);
  });
  CHECK(watched.await(watched.over));
  CHECK_FALSE(watched.stalled);
}
