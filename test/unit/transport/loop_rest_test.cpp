// A loop that sleeps: it uses no CPU, and wakes when there is something to do.
#include <pthread.h>
#include <sys/eventfd.h>
#include <time.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "backend/transport/handshake_socket.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/local_ring.h"
#include "test/unit/support/on_loop.h"
#include "test/unit/support/ring_poller.h"

using namespace torchwire;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

/// How long a loop's thread has run.
class CpuClock {
 public:
  explicit CpuClock(Loop& loop)
      : clock_(onLoop(loop, [] {
          clockid_t clock = 0;
          pthread_getcpuclockid(pthread_self(), &clock);
          return clock;
        })) {}

  std::chrono::nanoseconds now() const {
    timespec time{};
    clock_gettime(clock_, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }

  /// How much of the next while: what this is about is that nothing happens in it.
  std::chrono::nanoseconds usedIn(milliseconds wait) const {
    const auto before = now();
    std::this_thread::sleep_for(wait);
    return now() - before;
  }

 private:
  const clockid_t clock_;
};

constexpr milliseconds kWhile{500};
constexpr milliseconds kNothing{5}; // falling asleep takes a moment, and more under a sanitizer

/// A poller that does what the test says.
class ScriptedPoller final : public Loop::Poller {
 public:
  explicit ScriptedPoller(Loop& loop) : loop_(loop) {
    loop_.add(*this);
  }
  ~ScriptedPoller() override {
    loop_.remove(*this);
  }
  ScriptedPoller(const ScriptedPoller&) = delete;
  ScriptedPoller& operator=(const ScriptedPoller&) = delete;

  bool poll() override {
    return onPoll && onPoll();
  }
  bool armWakeup() override {
    return !onArm || onArm();
  }

  std::function<bool()> onPoll, onArm;

 private:
  Loop& loop_;
};

} // namespace

TEST_CASE("a loop with nothing to do uses no CPU", "[loop_rest]") {
  const auto loop = Loop::start("test");
  const CpuClock clock(*loop);
  CHECK(clock.usedIn(kWhile) < kNothing);
}

TEST_CASE("a loop that waits for files, times and rings uses no CPU", "[loop_rest]") {
  Notifier progress;
  LocalRing ring(64);
  const auto loop = Loop::start("test");
  const Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  OnLoop<RingPoller> poller(loop, ring.memory(), event.get(), progress);
  OnLoop<LoopTimer> timer(loop);
  timer([](LoopTimer& bound) { bound.start(std::chrono::hours(1), [] {}); });
  const CpuClock clock(*loop);
  CHECK(clock.usedIn(kWhile) < kNothing);
}

TEST_CASE("a loop falls asleep again after much traffic", "[loop_rest]") {
  Notifier progress;
  LocalRing ring(64);
  const auto loop = Loop::start("test");
  const Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  OnLoop<RingPoller> poller(loop, ring.memory(), event.get(), progress);
  RingWriter writer(ring.memory());
  uint64_t written = 0;
  while (written < 100000) {
    written += writer.write("some bytes", 10).value();
    if (writer.takeReaderWakeup()) {
      eventfd_write(event.get(), 1);
    }
    onLoop(*loop, [&] { loop->noteSocketTraffic(); });
  }
  const CpuClock clock(*loop);
  CHECK(poller([](RingPoller& bound) { return bound.read.load(); }) == written);
  CHECK(clock.usedIn(kWhile) < kNothing);
}

TEST_CASE("a wakeup wakes a loop that sleeps, whenever it falls asleep", "[loop_rest]") {
  const unsigned seed = GENERATE(range(1u, 6u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  Notifier progress;
  LocalRing ring(64);
  const auto loop = Loop::start("test");
  const Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  OnLoop<RingPoller> poller(loop, ring.memory(), event.get(), progress);
  RingPoller* const bound = poller([](RingPoller& it) { return &it; });
  RingWriter writer(ring.memory());
  uint64_t written = 0;
  for (int i = 0; i < 400; ++i) {
    // A pause about as long as the loop spins, so that it is falling asleep now and then.
    const auto begin = std::chrono::steady_clock::now();
    const microseconds pause(random() % 150);
    while (std::chrono::steady_clock::now() - begin < pause) {
    }
    const size_t length = 1 + random() % 64;
    const std::vector<char> bytes(length, 'x');
    written += writer.write(bytes.data(), length).value();
    if (writer.takeReaderWakeup()) {
      eventfd_write(event.get(), 1);
    }
    REQUIRE(progress.waitUntil([&] { return bound->read == written; }));
  }
}

TEST_CASE("a task wakes a loop that sleeps, whenever it falls asleep", "[loop_rest]") {
  std::mt19937 random(1);
  const auto loop = Loop::start("test");
  for (int i = 0; i < 2000; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const microseconds pause(random() % 100);
    while (std::chrono::steady_clock::now() - begin < pause) {
    }
    onLoop(*loop, [] {});
  }
  SUCCEED();
}

// ---- pollers --------------------------------------------------------------------------------------

TEST_CASE(
    "a poller that has found something as the wakeup was armed is polled again", "[loop_rest]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  OnLoop<ScriptedPoller> poller(loop);
  CallbackNote& polled = ledger.note("the poll");
  poller([&](ScriptedPoller& bound) {
    bound.onArm = [&, armed = false]() mutable {
      if (!std::exchange(armed, true)) {
        bound.onPoll = [&] {
          bound.onPoll = nullptr;
          polled.add(Error());
          return true;
        };
        return false; // and nothing else wakes the loop
      }
      return true;
    };
  });
  CHECK(ledger.waitForAll());
}

TEST_CASE("a wakeup in vain does not keep the other wakeups from being armed", "[loop_rest]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  OnLoop<ScriptedPoller> first(loop), second(loop);
  CallbackNote& armed = ledger.note("the second wakeup");
  second([&](ScriptedPoller& bound) {
    bound.onArm = [&, done = false]() mutable {
      if (!std::exchange(done, true)) {
        armed.add(Error());
      }
      return true;
    };
  });
  first([](ScriptedPoller& bound) {
    bound.onArm = [done = false]() mutable { return std::exchange(done, true); };
  });
  CHECK(ledger.waitForAll());
}

TEST_CASE("a poller may go, and others come, while it is polled", "[loop_rest]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  std::vector<std::unique_ptr<ScriptedPoller>> pollers;
  CallbackNote& last = ledger.note("the last of a chain of pollers");
  std::function<void(int)> add = [&](int left) {
    pollers.push_back(std::make_unique<ScriptedPoller>(*loop));
    pollers.back()->onPoll = [&, left, own = pollers.back().get()] {
      const auto keep = std::move(own->onPoll);
      std::erase_if(pollers, [&](const auto& each) { return each.get() == own; });
      if (left == 0) {
        last.add(Error());
      } else {
        add(left - 1);
      }
      return true;
    };
  };
  onLoop(*loop, [&] { add(100); });
  CHECK(ledger.waitForAll());
  onLoop(*loop, [&] { pollers.clear(); });
}

TEST_CASE("a poller that was removed is not polled any more", "[loop_rest]") {
  const auto loop = Loop::start("test");
  std::atomic<bool> gone{false}, polledLate{false};
  auto poller = onLoop(*loop, [&] { return std::make_unique<ScriptedPoller>(*loop); });
  onLoop(*loop, [&] {
    poller->onPoll = [&] {
      polledLate = polledLate || gone;
      return true;
    };
  });
  onLoop(*loop, [] {});
  onLoop(*loop, [&] {
    poller.reset();
    gone = true;
  });
  for (int i = 0; i < 100; ++i) {
    onLoop(*loop, [] {});
  }
  CHECK_FALSE(polledLate);
}
