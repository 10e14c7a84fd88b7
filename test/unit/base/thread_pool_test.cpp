#include "backend/base/thread_pool.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <latch>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "test/unit/support/callback_ledger.h"

using namespace torchwire;

namespace {

Task expected(CallbackLedger& ledger, const std::string& what) {
  return Task([sent = ledger.expect(what)] { sent(Error()); });
}

// The pool does not tell when a thread goes idle, so ask.
void waitUntilIdle(const ThreadPool& pool) {
  while (pool.idle() != pool.capacity()) {
    std::this_thread::yield();
  }
}

} // namespace

TEST_CASE("every accepted task runs before the join returns", "[thread_pool]") {
  constexpr int kThreads = 4;
  constexpr int kTasks = 500;
  std::atomic<int> ran{0};
  std::atomic<int> refused{0};
  ThreadPool pool(3, "test");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTasks; ++i) {
        refused += pool.run([&ran] { ++ran; }) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  pool.join();
  CHECK(ran == kThreads * kTasks);
  CHECK(refused == 0);
}

TEST_CASE("no more tasks run at a time than the pool has threads", "[thread_pool]") {
  constexpr int kCapacity = 3;
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  std::latch full(kCapacity); // opens only if so many run at a time
  ThreadPool pool(kCapacity, "test");
  for (int i = 0; i < 30; ++i) {
    pool.run([&, i] {
      const int now = ++running;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      if (i < kCapacity) {
        full.arrive_and_wait();
      }
      --running;
    });
  }
  pool.join();
  CHECK(most == kCapacity);
}

TEST_CASE("a busy pool tells how many more tasks it could start", "[thread_pool]") {
  std::latch begun(2);
  std::latch go(1);
  ThreadPool pool(3, "test");
  CHECK(pool.capacity() == 3);
  CHECK(pool.idle() == 3);
  for (int i = 0; i < 2; ++i) {
    pool.run([&] {
      begun.count_down();
      go.wait();
    });
  }
  begun.wait();
  CHECK(pool.idle() == 1);
  go.count_down();
  waitUntilIdle(pool);
  CHECK(pool.idle() == 3);
}

TEST_CASE("tasks that come one at a time need one thread", "[thread_pool]") {
  std::set<std::thread::id> threads;
  ThreadPool pool(8, "test");
  for (int i = 0; i < 50; ++i) {
    pool.run([&threads] { threads.insert(std::this_thread::get_id()); });
    waitUntilIdle(pool);
  }
  pool.join();
  CHECK(threads.size() == 1);
}

TEST_CASE("the thread that went idle last gets the next task", "[thread_pool]") {
  std::latch bothBegun(2);
  std::latch firstMayEnd(1);
  std::latch secondMayEnd(1);
  std::atomic<std::thread::id> second;
  std::atomic<std::thread::id> next;
  ThreadPool pool(2, "test");
  pool.run([&] {
    bothBegun.arrive_and_wait();
    firstMayEnd.wait();
  });
  pool.run([&] {
    bothBegun.arrive_and_wait();
    second = std::this_thread::get_id();
    secondMayEnd.wait();
  });
  bothBegun.wait();
  firstMayEnd.count_down();
  while (pool.idle() != 1) {
    std::this_thread::yield();
  }
  secondMayEnd.count_down();
  waitUntilIdle(pool);
  pool.run([&] { next = std::this_thread::get_id(); });
  pool.join();
  CHECK(next.load() == second.load());
}

TEST_CASE("the threads bear the pool's name, cut to what the system takes", "[thread_pool]") {
  std::array<char, 32> name{};
  ThreadPool pool(1, "a_name_that_is_too_long");
  pool.run([&name] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  pool.join();
  CHECK(std::string(name.data()) == "a_name_that_is_");
}

TEST_CASE("a task that comes after the join stays the caller's", "[thread_pool]") {
  CallbackLedger ledger;
  ThreadPool pool(2, "test");
  pool.join();
  Task task = expected(ledger, "the late task");
  CHECK_FALSE(pool.run(std::move(task)));
  REQUIRE(task);
  task();
}

TEST_CASE("a pool that never ran a task joins", "[thread_pool]") {
  ThreadPool pool(2, "test");
  pool.join();
  pool.join();
  CHECK_FALSE(pool.run([] {}));
}

TEST_CASE("a task that runs elsewhere counts as one of the pool's", "[thread_pool]") {
  CallbackLedger ledger;
  ThreadPool pool(1, "test");
  std::thread::id ranOn;
  bool later = false;
  Task here([&] {
    ranOn = std::this_thread::get_id();
    CHECK(pool.idle() == 0);
    pool.run([&later, sent = ledger.expect("a task that comes meanwhile")] {
      later = true;
      sent(Error());
    });
    Task another([] {});
    CHECK_FALSE(pool.runHere(another));
    CHECK(static_cast<bool>(another));
    CHECK_FALSE(later);
  });
  CHECK(pool.runHere(here));
  CHECK(ranOn == std::this_thread::get_id());
  CHECK_FALSE(static_cast<bool>(here));
  CHECK(ledger.waitForAll());
}

TEST_CASE("no task runs elsewhere while the pool has its hands full", "[thread_pool]") {
  std::latch begun(1);
  std::latch go(1);
  ThreadPool pool(1, "test");
  pool.run([&] {
    begun.count_down();
    go.wait();
  });
  begun.wait();
  Task task([] {});
  CHECK_FALSE(pool.runHere(task));
  go.count_down();
  waitUntilIdle(pool);
  CHECK(pool.runHere(task));
}

TEST_CASE("tasks that run here and there never exceed the capacity, and all run", "[thread_pool]") {
  constexpr int kCapacity = 2;
  constexpr int kTasks = 2000;
  std::atomic<int> running{0}, most{0}, ran{0};
  const auto work = [&] {
    const int now = ++running;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    ++ran;
    --running;
  };
  ThreadPool pool(kCapacity, "test");
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTasks; ++i) {
        Task task(work);
        if (i % 2 == 0 || !pool.runHere(task)) {
          pool.run(std::move(task));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  pool.join();
  CHECK(ran == 3 * kTasks);
  CHECK(most <= kCapacity);
}

TEST_CASE("a task that waits makes room for another one", "[thread_pool]") {
  constexpr size_t kDepth = 50; // each task waits for the one that it adds
  std::latch deepest(1);
  size_t ran = 0;
  ThreadPool pool(1, "test", [](Task& task) { task(); }, kDepth);
  std::function<void(size_t)> descend = [&](size_t left) {
    if (left == 0) {
      return;
    }
    std::latch next(1);
    pool.run([&] {
      descend(left - 1);
      ++ran; // no two run at a time: each waits for the next
      next.count_down();
    });
    const ThreadPool::BlockingScope blocking;
    next.wait();
  };
  pool.run([&] {
    descend(kDepth);
    deepest.count_down();
  });
  deepest.wait();
  CHECK(ran == kDepth);
  pool.join();
}

TEST_CASE(
    "no more threads than the spare ones take the places of those that wait", "[thread_pool]") {
  constexpr size_t kSpare = 2;
  std::atomic<size_t> waiting{0};
  std::latch go(1);
  std::atomic<int> ran{0};
  ThreadPool pool(1, "test", [](Task& task) { task(); }, kSpare);
  for (int i = 0; i < 10; ++i) {
    pool.run([&] {
      const ThreadPool::BlockingScope blocking;
      ++waiting;
      go.wait();
      ++ran;
    });
  }
  while (waiting < 1 + kSpare || pool.blocked() < 1 + kSpare) {
    std::this_thread::yield();
  }
  CHECK(pool.idle() == 0);
  CHECK(waiting == 1 + kSpare);
  go.count_down();
  pool.join();
  CHECK(ran == 10);
}

TEST_CASE("a task that runs elsewhere and waits makes room as well", "[thread_pool]") {
  std::latch ran(1);
  ThreadPool pool(1, "test", [](Task& task) { task(); }, 1);
  Task elsewhere([&] {
    pool.run([&] { ran.count_down(); });
    const ThreadPool::BlockingScope blocking;
    ran.wait();
  });
  CHECK(pool.runHere(elsewhere));
  waitUntilIdle(pool);
}

TEST_CASE("a pool without spare threads makes no room for others", "[thread_pool]") {
  std::latch begun(1);
  std::latch go(1);
  std::atomic<bool> second{false};
  std::atomic<bool> wasAlone{false};
  ThreadPool pool(1, "test");
  pool.run([&] {
    const ThreadPool::BlockingScope blocking;
    begun.count_down();
    go.wait();
    wasAlone = !second;
  });
  begun.wait();
  pool.run([&] { second = true; });
  CHECK(pool.blocked() == 1);
  CHECK(pool.idle() == 0);
  go.count_down();
  pool.join();
  CHECK(wasAlone);
  CHECK(second);
}

TEST_CASE("who waits outside of a pool makes no room anywhere", "[thread_pool]") {
  ThreadPool pool(1, "test", [](Task& task) { task(); }, 1);
  const ThreadPool::BlockingScope blocking;
  CHECK(pool.blocked() == 0);
  CHECK(pool.idle() == 1);
}

TEST_CASE("a spare thread ends when it has had nothing to do for a while", "[thread_pool]") {
  std::latch both(2);
  ThreadPool pool(1, "test", [](Task& task) { task(); }, 1);
  for (int i = 0; i < 2; ++i) {
    pool.run([&] {
      const ThreadPool::BlockingScope blocking;
      both.arrive_and_wait();
    });
  }
  both.wait();
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto before = threads();
  while (threads() >= before) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::atomic<bool> ran{false};
  pool.run([&] { ran = true; });
  pool.join();
  CHECK(ran);
}

TEST_CASE("a task that throws ends neither its thread nor the process", "[thread_pool]") {
  CallbackLedger ledger;
  ThreadPool pool(1, "test");
  pool.run([] { throw std::runtime_error("as the test wants it"); });
  pool.run([] { throw 42; });
  pool.run(expected(ledger, "the next task"));
  pool.join();
}

TEST_CASE("what a task holds goes when it has run", "[thread_pool]") {
  ThreadPool pool(1, "test");
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = held;
  pool.run([held = std::move(held)] {});
  waitUntilIdle(pool);
  CHECK(watch.expired());
}

TEST_CASE("a task may add tasks, until the join begins", "[thread_pool]") {
  CallbackLedger ledger;
  std::latch added(1);
  ThreadPool pool(1, "test");
  pool.run([&] {
    pool.run(expected(ledger, "the inner task"));
    added.count_down();
  });
  added.wait();
  pool.join();
}

TEST_CASE("a task may join its own pool", "[thread_pool]") {
  CallbackLedger ledger;
  std::latch joined(1);
  ThreadPool pool(2, "test");
  pool.run([&] {
    pool.run(expected(ledger, "a task that was accepted before"));
    pool.join();
    CallbackLedger::expect(ledger.note("the task after its join"))(Error());
    joined.count_down();
  });
  joined.wait();
  CHECK_FALSE(pool.run([] {}));
  CHECK(ledger.waitForAll());
}

TEST_CASE("tasks that wait are not lost when a task joins its own pool", "[thread_pool]") {
  CallbackLedger ledger;
  ThreadPool pool(1, "test");
  std::latch queued(1);
  pool.run([&] {
    queued.wait();
    pool.join();
  });
  for (int i = 0; i < 10; ++i) {
    pool.run(expected(ledger, "task " + std::to_string(i)));
  }
  queued.count_down();
  CHECK(ledger.waitForAll());
}

TEST_CASE("a pool may be destroyed by its own task", "[thread_pool]") {
  CallbackLedger ledger;
  auto pool = std::make_shared<ThreadPool>(2, "test");
  ThreadPool& running = *pool;
  std::latch moved(1);
  running.run([&moved, pool, sent = ledger.expect("the task")]() mutable {
    moved.wait();
    pool.reset();
    sent(Error());
  });
  pool.reset();
  moved.count_down();
  CHECK(ledger.waitForAll());
}

TEST_CASE("tasks that race with the join run once or are refused", "[thread_pool]") {
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> ran{0};
    int accepted = 0;
    ThreadPool pool(2, "test");
    pool.run([&ran] { ++ran; });
    waitUntilIdle(pool);
    std::latch start(2);
    std::thread runner([&] {
      start.arrive_and_wait();
      for (int i = 0; i < 3; ++i) {
        accepted += pool.run([&ran] { ++ran; }) ? 1 : 0;
      }
    });
    start.arrive_and_wait();
    pool.join();
    runner.join();
    REQUIRE(ran == accepted + 1);
  }
}

namespace {

/// Brings one event for each time that it is driven.
class CountingDriver final : public Driver {
 public:
  explicit CountingDriver(std::function<void()> bring) : bring_(std::move(bring)) {}

  void drive(const std::function<bool()>& isOver) override {
    ++driving;
    bring_();
    while (!isOver()) {
      interrupted.wait(false);
      interrupted = false;
    }
    --driving;
  }
  void interrupt() override {
    interrupted = true;
    interrupted.notify_all();
  }

  std::atomic<bool> interrupted{false};
  std::atomic<int> driving{0};

 private:
  const std::function<void()> bring_;
};

} // namespace

TEST_CASE("a thread that drives when idle runs what it brings", "[thread_pool]") {
  std::atomic<int> left{100};
  std::latch over(1);
  std::set<std::thread::id> threads; // by one task after the other
  ThreadPool pool(4, "test");
  const std::function<void()> task = [&] {
    threads.insert(std::this_thread::get_id());
    if (left == 0) {
      over.count_down();
    }
  };
  const auto driver = std::make_shared<CountingDriver>([&] {
    --left;
    pool.run([&] { task(); });
  });
  pool.driveWhenIdle(driver, [&] { return left > 0; });
  pool.run([&] { task(); });
  over.wait();
  pool.join();
  CHECK(threads.size() == 1);
  CHECK(driver->driving == 0);
}

TEST_CASE("a thread that drives is called by a task, and by the end", "[thread_pool]") {
  const auto driver = std::make_shared<CountingDriver>([] {});
  ThreadPool pool(1, "test");
  pool.driveWhenIdle(driver, [] { return true; });
  for (int i = 0; i < 100; ++i) {
    std::latch ran(1);
    CHECK(pool.run([&] { ran.count_down(); }));
    ran.wait();
  }
  pool.join();
  CHECK(driver->driving == 0);
}

TEST_CASE("a thread that has run a task drives again", "[thread_pool]") {
  std::atomic<int> drives{0};
  struct Counter final : Driver {
    std::atomic<int>& drives;
    explicit Counter(std::atomic<int>& drives) : drives(drives) {}
    void drive(const std::function<bool()>& isOver) override {
      if (!isOver()) {
        ++drives;
        drives.notify_all();
        while (!isOver()) {
          std::this_thread::yield();
        }
      }
    }
    void interrupt() override {}
  };
  ThreadPool pool(1, "test");
  pool.driveWhenIdle(std::make_shared<Counter>(drives), [] { return true; });
  for (int i = 1; i <= 200; ++i) {
    CHECK(pool.run([] {}));
    for (int now = drives; now < i; now = drives) {
      drives.wait(now);
    }
  }
  pool.join();
}
