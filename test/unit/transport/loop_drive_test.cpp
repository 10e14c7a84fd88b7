// A loop that is driven by those who wait for what it brings.
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/thread_role.h"
#include "backend/call/waiter.h"
#include "backend/transport/handshake_socket.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "test/unit/support/broken_rule.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/local_ring.h"
#include "test/unit/support/on_loop.h"
#include "test/unit/support/open_files.h"
#include "test/unit/support/ring_poller.h"

using namespace torchwire;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

void keepBusy(Clock::duration time) {
  const auto begin = Clock::now();
  while (Clock::now() - begin < time) {
  }
}

/// Drives until it is over: a single drive ends after a moment, or at once where the keeper is busy.
template <typename IsOver>
void driveUntil(Loop& loop, IsOver isOver) {
  const auto end = Clock::now() + Notifier::kPatience;
  while (!isOver()) {
    if (Clock::now() > end) {
      throw std::runtime_error("a driver waits in vain");
    }
    loop.drive(isOver);
  }
}

/// Runs the task on this thread, as one that comes while it drives.
void asDriver(Loop& loop, const std::function<void()>& task) {
  bool posted = false;
  bool ran = false;
  driveUntil(loop, [&] {
    if (loop.isLoopThread() && !std::exchange(posted, true)) {
      loop.post([&] {
        task();
        ran = true;
      });
    }
    return ran;
  });
}

/// A thread that drives, and is held up meanwhile until this goes.
class HeldDriver {
 public:
  explicit HeldDriver(Loop& loop)
      : thread_([this, &loop, over = false]() mutable {
          driveUntil(loop, [&] {
            if (!over && loop.isLoopThread()) {
              drives_.set_value();
              released_.get_future().wait();
              over = true;
            }
            return over;
          });
        }) {
    drives_.get_future().wait();
  }
  ~HeldDriver() {
    released_.set_value();
    thread_.join();
  }
  HeldDriver(const HeldDriver&) = delete;
  HeldDriver& operator=(const HeldDriver&) = delete;

 private:
  std::promise<void> drives_, released_;
  std::thread thread_;
};

/// Drives again and again on a thread of its own, with pauses in which the keeper has to look after the loop.
class RestlessDriver {
 public:
  explicit RestlessDriver(Loop& loop, unsigned seed)
      : thread_([this, &loop, random = std::mt19937(seed)]() mutable {
          while (!over_) {
            const auto until = Clock::now() + microseconds(random() % 300);
            loop.drive([&] { return over_ || Clock::now() > until; });
            keepBusy(microseconds(random() % 300));
          }
        }) {}
  ~RestlessDriver() {
    over_ = true;
    thread_.join();
  }
  RestlessDriver(const RestlessDriver&) = delete;
  RestlessDriver& operator=(const RestlessDriver&) = delete;

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

} // namespace

// ---- who drives -----------------------------------------------------------------------------------

TEST_CASE("a driver runs on its own thread what is posted while it drives", "[loop_drive]") {
  const auto loop = Loop::start("test");
  std::thread::id ranOn;
  bool wasLoopThread = false;
  asDriver(*loop, [&] {
    ranOn = std::this_thread::get_id();
    wasLoopThread = loop->isLoopThread();
  });
  CHECK(ranOn == std::this_thread::get_id());
  CHECK(wasLoopThread);
  CHECK_FALSE(loop->isLoopThread());
}

TEST_CASE(
    "a driver runs on its own thread what others post, even while it sleeps", "[loop_drive]") {
  const auto pause = GENERATE(microseconds(0), microseconds(400));
  const auto loop = Loop::start("test");
  std::thread::id ranOn;
  const auto end = Clock::now() + Notifier::kPatience;
  while (ranOn != std::this_thread::get_id() && Clock::now() < end) { // it may give up before
    std::atomic<bool> drives{false}, ran{false};
    std::thread other([&] {
      while (!drives) {
        std::this_thread::yield();
      }
      keepBusy(pause);
      loop->post([&] {
        ranOn = std::this_thread::get_id();
        ran = true;
      });
    });
    driveUntil(*loop, [&] {
      drives = drives || loop->isLoopThread();
      return ran.load();
    });
    other.join();
  }
  CHECK(ranOn == std::this_thread::get_id());
}

TEST_CASE("a driver calls timers and sockets back on its own thread", "[loop_drive]") {
  const auto loop = Loop::start("test");
  const Descriptor event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  std::unique_ptr<LoopTimer> timer;
  std::unique_ptr<FdWatch> watch;
  std::thread::id timerOn, watchOn;
  const auto both = [&](std::thread::id thread) { return timerOn == thread && watchOn == thread; };
  const auto end = Clock::now() + Notifier::kPatience;
  while (!both(std::this_thread::get_id()) && Clock::now() < end) {
    asDriver(*loop, [&] {
      timer = std::make_unique<LoopTimer>(*loop);
      watch = std::make_unique<FdWatch>(*loop, event.get(), [&] {
        watchOn = std::this_thread::get_id();
        watch->want(0);
      });
    });
    std::atomic<bool> due{false};
    bool started = false;
    driveUntil(*loop, [&] {
      if (loop->isLoopThread() && !std::exchange(started, true)) {
        watch->want(FdWatch::readable);
        timer->start(milliseconds(1), [&] {
          timerOn = std::this_thread::get_id();
          due = true;
        });
      }
      return due.load();
    });
    onLoop(*loop, [&] {
      timer.reset();
      watch.reset();
    });
  }
  CHECK(both(std::this_thread::get_id()));
}

TEST_CASE("a driver that has nothing to wait for does not begin", "[loop_drive]") {
  const auto loop = Loop::start("test");
  int looks = 0;
  loop->drive([&] {
    ++looks;
    return true;
  });
  CHECK(looks == 1);
}

TEST_CASE("a driver stops as soon as it is over", "[loop_drive]") {
  const auto loop = Loop::start("test");
  bool over = false;
  int looksAfter = 0;
  const auto end = Clock::now() + Notifier::kPatience;
  while (!over && Clock::now() < end) {
    loop->drive([&, looks = 0]() mutable {
      looksAfter += over ? 1 : 0;
      looks += loop->isLoopThread() ? 1 : 0;
      over = over || looks == 2; // the next would be before it sleeps
      return over;
    });
  }
  CHECK(over);
  CHECK(looksAfter == 0);
}

TEST_CASE("a driver gives up after a moment", "[loop_drive]") {
  const auto loop = Loop::start("test");
  bool drove = false;
  const auto end = Clock::now() + Notifier::kPatience;
  while (!drove && Clock::now() < end) {
    loop->drive([&] {
      drove = drove || loop->isLoopThread();
      return false;
    });
  }
  CHECK(drove);
}

TEST_CASE("nobody waits for another driver to end", "[loop_drive]") {
  const auto loop = Loop::start("test");
  auto held = std::make_unique<HeldDriver>(*loop);
  bool drove = false;
  auto second = std::async(std::launch::async, [&] {
    loop->drive([&] {
      drove = drove || loop->isLoopThread();
      return false;
    });
  });
  CHECK(second.wait_for(Notifier::kPatience) == std::future_status::ready);
  held.reset();
  second.get();
  CHECK_FALSE(drove);
}

TEST_CASE("a task does not drive the loop on which it runs", "[loop_drive]") {
  const auto loop = Loop::start("test");
  const auto looks = onLoop(*loop, [&] {
    int count = 0;
    loop->drive([&] { return ++count > 1; });
    return count;
  });
  CHECK(looks == 1);
}

TEST_CASE("a thread that may not block does not drive", "[loop_drive]") {
  const auto loop = Loop::start("test");
  int looks = 0;
  const auto isOver = [&] { return ++looks > 1; };
  SECTION("as it delivers") {
    const DeliverScope delivering;
    loop->drive(isOver);
  }
  SECTION("as it sends") {
    const SendScope sending;
    loop->drive(isOver);
  }
  CHECK(looks == 1);
}

TEST_CASE("who drives under a lock ends the process", "[loop_drive]") {
  const auto loop = Loop::start("test");
  const ChildEnd end = inChild([&] {
    Mutex mutex(LockRank::test);
    const MutexLock lock(mutex);
    loop->drive([] { return true; });
  });
  CHECK(end.aborted);
  CHECK_THAT(end.said, Catch::Matchers::Contains("driving a loop"));
}

// ---- interrupts -----------------------------------------------------------------------------------

TEST_CASE("an interrupt wakes a driver that sleeps", "[loop_drive]") {
  constexpr microseconds kAsleepBy{300}; // longer than a driver spins
  constexpr microseconds kGivesUpAfter{2000};
  const auto loop = Loop::start("test");
  Clock::duration quickest = Clock::duration::max();
  for (int i = 0; i < 1000 && quickest >= kGivesUpAfter; ++i) { // other processes may delay it
    std::atomic<bool> drives{false}, over{false};
    std::thread other([&] {
      while (!drives) {
        std::this_thread::yield();
      }
      keepBusy(kAsleepBy);
      over = true;
      loop->interrupt();
    });
    while (!over) {
      Clock::time_point begin;
      loop->drive([&] {
        if (!drives && loop->isLoopThread()) {
          begin = Clock::now();
          drives = true;
        }
        return over.load();
      });
      if (begin != Clock::time_point()) {
        quickest = std::min(quickest, Clock::now() - begin);
      }
    }
    other.join();
  }
  CHECK(quickest < kGivesUpAfter);
}

TEST_CASE("a waiter that drives gets what the loop, or another thread, gives it", "[loop_drive]") {
  const unsigned seed = GENERATE(range(1u, 4u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto loop = Loop::start("test");
  for (int i = 0; i < 300; ++i) {
    const auto waiter = std::make_shared<Waiter>();
    std::thread::id ranOn;
    const auto give = [&ranOn, waiter] {
      waiter->give([&] { ranOn = std::this_thread::get_id(); });
    };
    const bool byLoop = random() % 2 == 0;
    std::thread other([&, pause = microseconds(random() % 500)] {
      keepBusy(pause);
      byLoop ? loop->post(give) : give();
    });
    waiter->await(loop.get())();
    other.join();
    REQUIRE(ranOn == std::this_thread::get_id());
  }
}

// ---- when a driver has left -----------------------------------------------------------------------

TEST_CASE("a task that is posted as a driver leaves runs", "[loop_drive]") {
  std::mt19937 random(1);
  const auto loop = Loop::start("test");
  for (int i = 0; i < 500; ++i) {
    const auto until = Clock::now() + microseconds(random() % 200);
    loop->drive([&] { return Clock::now() > until; });
    keepBusy(microseconds(random() % 20));
    onLoop(*loop, [] {}); // which throws if nobody comes to it
  }
  SUCCEED();
}

TEST_CASE("a task that is posted under a driver's last look runs", "[loop_drive]") {
  const auto loop = Loop::start("test");
  for (int i = 0; i < 500; ++i) {
    std::promise<void> ran;
    asDriver(*loop, [&] {
      // More in a row than a driver runs before it goes.
      auto next = std::make_shared<std::function<void(int)>>();
      *next = [&, again = std::weak_ptr(next)](int left) {
        if (left == 0) {
          ran.set_value();
        } else {
          loop->post([next = again.lock(), left] { (*next)(left - 1); });
        }
      };
      (*next)(20);
    });
    REQUIRE(ran.get_future().wait_for(Notifier::kPatience) == std::future_status::ready);
    onLoop(*loop, [] {}); // the last task has gone
  }
}

TEST_CASE("a timer that a driver started is due when the driver has left", "[loop_drive]") {
  const milliseconds after = GENERATE(milliseconds(0), milliseconds(3), milliseconds(20));
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  std::unique_ptr<LoopTimer> timer;
  asDriver(*loop, [&] {
    timer = std::make_unique<LoopTimer>(*loop);
    timer->start(after, [sent = ledger.expect("the timer")] { sent(Error()); });
  });
  CHECK(ledger.waitForAll());
  onLoop(*loop, [&] { timer.reset(); });
}

TEST_CASE("a driver's timer is due before a later one of the keeper's", "[loop_drive]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  OnLoop<LoopTimer> later(loop), sooner(loop);
  later([](LoopTimer& bound) { bound.start(std::chrono::hours(1), [] {}); });
  LoopTimer* const bound = sooner([](LoopTimer& it) { return &it; });
  asDriver(*loop, [&] {
    bound->start(milliseconds(3), [sent = ledger.expect("the timer")] { sent(Error()); });
  });
  CHECK(ledger.waitForAll());
}

TEST_CASE("a file that a driver began to watch is watched when it has left", "[loop_drive]") {
  Notifier notifier;
  const auto loop = Loop::start("test");
  const Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::atomic<int> seen{0};
  std::unique_ptr<FdWatch> watch;
  asDriver(*loop, [&] {
    watch = std::make_unique<FdWatch>(*loop, event.get(), [&] {
      eventfd_t count = 0;
      eventfd_read(event.get(), &count);
      ++seen;
      notifier.notify();
    });
    watch->want(FdWatch::readable);
  });
  for (int i = 1; i <= 10; ++i) {
    eventfd_write(event.get(), 1);
    CHECK(notifier.waitUntil([&] { return seen == i; }));
    asDriver(*loop, [] {});
  }
  onLoop(*loop, [&] { watch.reset(); });
}

TEST_CASE(
    "a loop that is given up as a driver leaves runs what was posted, and ends", "[loop_drive]") {
  Loop::start("test").reset();
  const auto before = openFiles();
  CallbackLedger ledger;
  for (int i = 0; i < 50; ++i) {
    auto loop = Loop::start("test");
    asDriver(*loop, [&] {
      loop->post([sent = ledger.expect("a task posted by a driver's")] { sent(Error()); });
    });
    loop->post([sent = ledger.expect("a task posted after a drive")] { sent(Error()); });
    loop.reset();
    REQUIRE(ledger.allCalled());
  }
  CHECK(openFiles() == before);
}

// ---- together -------------------------------------------------------------------------------------

TEST_CASE("many threads that drive and post run every task once, one at a time", "[loop_drive]") {
  constexpr size_t kThreads = 4;
  constexpr size_t kTasks = 400;
  const auto loop = Loop::start("test");
  std::vector<std::vector<int>> runs(kThreads, std::vector<int>(kTasks));
  size_t total = 0; // by the loop's role alone
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, random = std::mt19937(static_cast<unsigned>(t))]() mutable {
      for (size_t i = 0; i < kTasks; ++i) {
        std::atomic<bool> ran{false};
        const auto task = [&, i] {
          ++runs[t][i];
          ++total;
          ran = true;
        };
        random() % 4 == 0 ? loop->postQuietly(task) : loop->post(task);
        driveUntil(*loop, [&] { return ran.load(); });
        keepBusy(microseconds(random() % 100));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  onLoop(*loop, [] {});
  CHECK(total == kThreads * kTasks);
  for (const auto& ofThread : runs) {
    CHECK(std::all_of(ofThread.begin(), ofThread.end(), [](int count) { return count == 1; }));
  }
}

TEST_CASE("what is written to a ring while drivers come and go arrives", "[loop_drive]") {
  const unsigned seed = GENERATE(range(1u, 4u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  Notifier progress;
  LocalRing ring(64);
  const auto loop = Loop::start("test");
  const Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  OnLoop<RingPoller> poller(loop, ring.memory(), event.get(), progress);
  RingPoller* const bound = poller([](RingPoller& it) { return &it; });
  const RestlessDriver driver(*loop, seed);
  RingWriter writer(ring.memory());
  uint64_t written = 0;
  for (int i = 0; i < 300; ++i) {
    keepBusy(microseconds(random() % 300));
    const std::vector<char> bytes(1 + random() % 64, 'x');
    written += writer.write(bytes.data(), bytes.size()).value();
    if (writer.takeReaderWakeup()) {
      eventfd_write(event.get(), 1);
    }
    REQUIRE(progress.waitUntil([&] { return bound->read == written; }));
  }
}

TEST_CASE("a driver reads the ring for which it waits", "[loop_drive]") {
  Notifier progress;
  LocalRing ring(64);
  const auto loop = Loop::start("test");
  const Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  OnLoop<RingPoller> poller(loop, ring.memory(), event.get(), progress);
  RingPoller* const bound = poller([](RingPoller& it) { return &it; });
  RingWriter writer(ring.memory());
  uint64_t written = 0;
  for (int i = 0; i < 300; ++i) {
    std::thread other([&, pause = microseconds(i)] {
      keepBusy(pause);
      written += writer.write("some bytes", 10).value();
      if (writer.takeReaderWakeup()) {
        eventfd_write(event.get(), 1);
      }
    });
    const uint64_t expected = 10 * (static_cast<uint64_t>(i) + 1);
    driveUntil(*loop, [&] { return bound->read == expected; });
    other.join();
  }
  CHECK(bound->read == written);
}

// ---- quiet posts ----------------------------------------------------------------------------------

TEST_CASE(
    "what is posted quietly runs before long, whether or not the loop sleeps", "[loop_drive]") {
  std::mt19937 random(1);
  Notifier notifier;
  const auto loop = Loop::start("test");
  std::atomic<int> ran{0};
  for (int i = 1; i <= 60; ++i) {
    keepBusy(microseconds(random() % 12000)); // it dozes for some milliseconds, and sleeps then
    loop->postQuietly([&] {
      ++ran;
      notifier.notify();
    });
    REQUIRE(notifier.waitUntil([&] { return ran == i; }));
  }
}

TEST_CASE("what is posted quietly in traffic runs before long", "[loop_drive]") {
  Notifier notifier;
  const auto loop = Loop::start("test");
  const RestlessDriver driver(*loop, 1);
  std::atomic<bool> over{false};
  std::thread traffic([&] {
    while (!over) {
      onLoop(*loop, [] {});
      keepBusy(microseconds(200));
    }
  });
  std::atomic<int> ran{0};
  for (int i = 1; i <= 200; ++i) {
    loop->postQuietly([&] {
      ++ran;
      notifier.notify();
    });
    CHECK(notifier.waitUntil([&] { return ran == i; }));
  }
  over = true;
  traffic.join();
}
