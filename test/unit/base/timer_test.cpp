#include "backend/base/timer.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "test/unit/support/callback_ledger.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

// Notes which tasks ran, in order. Thread-safe.
class Order {
 public:
  explicit Order(Notifier& notifier) : notifier_(notifier) {}

  void add(int task) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      order_.push_back(task);
    }
    notifier_.notify();
  }
  std::vector<int> get() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return order_;
  }
  bool waitFor(size_t tasks) {
    return notifier_.waitUntil([&] { return get().size() >= tasks; });
  }

 private:
  Notifier& notifier_;
  mutable Mutex mutex_{LockRank::test};
  std::vector<int> order_ GUARDED_BY(mutex_);
};

} // namespace

TEST_CASE("timed tasks run in the order of their times", "[timer]") {
  Notifier notifier;
  Order order(notifier);
  Timer timer;
  const auto start = Timer::Clock::now() + milliseconds(20);
  for (const int task : {3, 1, 4, 0, 2}) {
    timer.at(start + milliseconds(task), [&order, task] { order.add(task); });
  }
  REQUIRE(order.waitFor(5));
  CHECK(order.get() == std::vector<int>{0, 1, 2, 3, 4});
}

TEST_CASE("timed tasks of the same time run in the order in which they were set", "[timer]") {
  Notifier notifier;
  Order order(notifier);
  Timer timer;
  const auto when = Timer::Clock::now() + milliseconds(10);
  for (int task = 0; task < 20; ++task) {
    timer.at(when, [&order, task] { order.add(task); });
  }
  REQUIRE(order.waitFor(20));
  const std::vector<int> ran = order.get();
  CHECK(std::is_sorted(ran.begin(), ran.end()));
}

TEST_CASE("a timed task does not run before its time", "[timer]") {
  CallbackLedger ledger;
  Timer timer;
  const auto when = Timer::Clock::now() + milliseconds(5);
  Timer::Clock::time_point ran;
  CallbackNote& note = ledger.note("the task");
  timer.at(when, [&] {
    ran = Timer::Clock::now();
    note.add(Error());
  });
  REQUIRE(ledger.waitForAll());
  CHECK(ran >= when);
}

TEST_CASE("a timed task of the past runs at once", "[timer]") {
  CallbackLedger ledger;
  Timer timer;
  timer.at(Timer::Clock::time_point(), [sent = ledger.expect("the task")] { sent(Error()); });
  CHECK(ledger.waitForAll());
}

TEST_CASE("an earlier task wakes a timer that waits for a later one", "[timer]") {
  CallbackLedger ledger;
  Timer timer;
  bool late = false;
  timer.after(std::chrono::hours(1), [&late] { late = true; });
  timer.after(milliseconds(2), [sent = ledger.expect("the earlier task")] { sent(Error()); });
  CHECK(ledger.waitForAll());
  timer.stop();
  CHECK_FALSE(late);
}

TEST_CASE("a timed task may set the next", "[timer]") {
  CallbackLedger ledger;
  Timer timer;
  const auto sent = ledger.expect("the last of a chain of tasks");
  std::function<void(int)> next = [&](int left) {
    if (left == 0) {
      sent(Error());
    } else {
      timer.after(milliseconds(0), [&next, left] { next(left - 1); });
    }
  };
  next(100);
  CHECK(ledger.waitForAll());
  timer.stop(); // before what the tasks refer to goes
}

TEST_CASE("a stopped timer drops its tasks and what they hold", "[timer]") {
  const auto held = std::make_shared<int>(0);
  Timer timer;
  bool ran = false;
  timer.after(std::chrono::hours(1), [&ran, held] { ran = true; });
  CHECK(held.use_count() == 2);
  timer.stop();
  CHECK(held.use_count() == 1);
  timer.after(milliseconds(0), [&ran, held] { ran = true; });
  CHECK(held.use_count() == 1);
  timer.stop();
  CHECK_FALSE(ran);
}

TEST_CASE("a timer without tasks stops", "[timer]") {
  Timer timer;
  timer.stop();
  timer.stop();
  SUCCEED();
}

TEST_CASE("stopping waits for the task that runs", "[timer]") {
  Notifier notifier;
  std::atomic<bool> begun{false};
  std::atomic<bool> ended{false};
  Timer timer;
  timer.after(milliseconds(0), [&] {
    begun = true;
    notifier.notify();
    std::this_thread::yield();
    ended = true;
  });
  REQUIRE(notifier.waitUntil([&] { return begun.load(); }));
  timer.stop();
  CHECK(ended);
}

TEST_CASE("what a timed task holds goes when it has run", "[timer]") {
  Notifier notifier;
  Timer timer;
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = held;
  Order order(notifier);
  timer.after(milliseconds(0), [held = std::move(held)] {});
  timer.after(milliseconds(1), [&] { order.add(watch.expired() ? 1 : 0); });
  REQUIRE(order.waitFor(1));
  CHECK(order.get() == std::vector<int>{1});
}

TEST_CASE("what a timed task holds may use the timer as it goes", "[timer]") {
  struct SetsAnother {
    SetsAnother(Timer& t, Link::Sent s) : timer(t), sent(std::move(s)) {}
    ~SetsAnother() {
      timer.after(milliseconds(0), [sent = std::move(sent)] { sent(Error()); });
    }
    Timer& timer;
    Link::Sent sent;
  };
  CallbackLedger ledger;
  Timer timer;
  auto held = std::make_shared<SetsAnother>(timer, ledger.expect("the task set by the other"));
  timer.after(milliseconds(0), [held = std::move(held)] {});
  CHECK(ledger.waitForAll());
}

TEST_CASE("a timed task that throws does not end the timer", "[timer]") {
  CallbackLedger ledger;
  Timer timer;
  timer.after(milliseconds(0), [] { throw std::runtime_error("as the test wants it"); });
  timer.after(milliseconds(1), [sent = ledger.expect("the next task")] { sent(Error()); });
  CHECK(ledger.waitForAll());
}

TEST_CASE("a timed task that throws something unknown does not end the timer", "[timer]") {
  CallbackLedger ledger;
  Timer timer;
  timer.after(milliseconds(0), [] { throw 42; });
  timer.after(milliseconds(1), [sent = ledger.expect("the next task")] { sent(Error()); });
  CHECK(ledger.waitForAll());
}

TEST_CASE("many timed tasks from many threads all run, in order", "[timer]") {
  constexpr int kThreads = 4;
  constexpr int kTasks = 500;
  Notifier notifier;
  Order order(notifier);
  Timer timer;
  const auto start = Timer::Clock::now() + milliseconds(50);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < kTasks; ++i) {
        const int delay = static_cast<int>(random() % 20000);
        timer.at(start + std::chrono::microseconds(delay), [&order, delay] { order.add(delay); });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const bool allSetInTime = Timer::Clock::now() < start;
  REQUIRE(order.waitFor(kThreads * kTasks));
  timer.stop();
  const std::vector<int> delays = order.get();
  CHECK(delays.size() == kThreads * kTasks);
  if (allSetInTime) {
    CHECK(std::is_sorted(delays.begin(), delays.end()));
  }
}
