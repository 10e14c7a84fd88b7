#include "backend/transport/loop.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/transport/loop_watch.h"
#include "test/unit/support/broken_rule.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/on_loop.h"
#include "test/unit/support/open_files.h"
#include "test/unit/support/thread_end.h"

using namespace torchwire;
using std::chrono::milliseconds;

namespace {

Task expected(CallbackLedger& ledger, const std::string& what) {
  return Task([sent = ledger.expect(what)] { sent(Error()); });
}

} // namespace

// ---- tasks ----------------------------------------------------------------------------------------

TEST_CASE("what is bound to a loop ends the process on another thread", "[loop]") {
  const auto loop = Loop::start("test");
  const ChildEnd end = inChild([&] { loop->uv(); });
  CHECK(end.aborted);
  CHECK_THAT(end.said, Catch::Matchers::Contains("was used on another thread than the loop's"));
}

TEST_CASE("tasks run in the order in which they were posted", "[loop]") {
  const auto loop = Loop::start("test");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) {
    loop->post([&order, i] { order.push_back(i); });
  }
  onLoop(*loop, [] {});
  CHECK(order.size() == 1000);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("tasks run on the loop's thread, which has the loop's name", "[loop]") {
  const auto loop = Loop::start("test_loop_name");
  CHECK_FALSE(loop->isLoopThread());
  CHECK(onLoop(*loop, [&] { return loop->isLoopThread(); }));
  CHECK(onLoop(*loop, [] {
          char name[16] = "";
          pthread_getname_np(pthread_self(), name, sizeof name);
          return std::string(name);
        }) == "test_loop_name");
}

TEST_CASE("tasks from many threads all run, each thread's in order", "[loop]") {
  constexpr int kThreads = 4;
  constexpr int kTasks = 2000;
  std::vector<std::vector<int>> order(kThreads);
  const auto loop = Loop::start("test");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        loop->post([&order, t, i] { order[static_cast<size_t>(t)].push_back(i); });
        if (i % 100 == 0) {
          onLoop(*loop, [] {}); // so that the loop falls asleep now and then
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  onLoop(*loop, [] {});
  for (const auto& of : order) {
    CHECK(of.size() == kTasks);
    CHECK(std::is_sorted(of.begin(), of.end()));
  }
}

TEST_CASE("a task posted by a task runs after it, not inside", "[loop]") {
  const auto loop = Loop::start("test");
  std::vector<std::string> order;
  onLoop(*loop, [&] {
    order.push_back("first begins");
    loop->post([&] { order.push_back("second"); });
    order.push_back("first ends");
  });
  onLoop(*loop, [] {});
  CHECK(order == std::vector<std::string>{"first begins", "first ends", "second"});
}

TEST_CASE("a task may post the next, many times over", "[loop]") {
  CallbackLedger ledger;
  const auto last = ledger.expect("the last of a chain of tasks");
  const auto loop = Loop::start("test");
  std::function<void(int)> next = [&](int left) {
    if (left == 0) {
      last(Error());
    } else {
      loop->post([&next, left] { next(left - 1); });
    }
  };
  loop->post([&next] { next(10000); });
  CHECK(ledger.waitForAll());
}

TEST_CASE("tasks that keep coming do not keep a timer from its time", "[loop]") {
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  std::atomic<bool> over{false};
  std::function<void()> again = [&] {
    if (!over) {
      loop->post(again);
    }
  };
  loop->post(again);
  OnLoop<LoopTimer> timer(loop);
  timer([&](LoopTimer& bound) {
    bound.start(milliseconds(2), [sent = ledger.expect("the timer")] { sent(Error()); });
  });
  CHECK(ledger.waitForAll());
  over = true;
  onLoop(*loop, [] {});
}

TEST_CASE("a task that throws does not end the loop", "[loop]") {
  const auto loop = Loop::start("test");
  loop->post([] { throw std::runtime_error("as the test wants it"); });
  CHECK(onLoop(*loop, [] { return 5; }) == 5);
}

TEST_CASE("a task that throws something unknown does not end the loop", "[loop]") {
  const auto loop = Loop::start("test");
  loop->post([] { throw 42; });
  CHECK(onLoop(*loop, [] { return 5; }) == 5);
}

TEST_CASE("what a task holds goes before the next task runs", "[loop]") {
  const auto loop = Loop::start("test");
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = held;
  loop->post([held = std::move(held)] {});
  CHECK(onLoop(*loop, [&] { return watch.expired(); }));
}

TEST_CASE("what a task holds may post as it goes", "[loop]") {
  struct PostsAnother {
    PostsAnother(Loop& l, Task t) : loop(l), task(std::move(t)) {}
    ~PostsAnother() {
      loop.post(std::move(task));
    }
    Loop& loop;
    Task task;
  };
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  auto held =
      std::make_shared<PostsAnother>(*loop, expected(ledger, "the task posted by the other"));
  loop->post([held = std::move(held)] {});
  CHECK(ledger.waitForAll());
}

TEST_CASE("a task posted by a timer that was overdue wakes the loop", "[loop]") {
  // Such a timer is called as the loop is about to sleep.
  CallbackLedger ledger;
  const auto loop = Loop::start("test");
  OnLoop<LoopTimer> timer(loop);
  for (int i = 0; i < 20 && ledger.allCalled(); ++i) {
    CallbackNote& note = ledger.note("the task");
    timer([&](LoopTimer& bound) {
      bound.start(milliseconds(1), [&] { loop->post([&note] { note.add(Error()); }); });
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < milliseconds(3)) {
      }
    });
    CHECK(ledger.notifier().waitUntil([&] { return note.called(); }, std::chrono::seconds(3)));
  }
}

// ---- the loop's end -------------------------------------------------------------------------------

TEST_CASE("a loop's end waits for what was posted, and for what that posts", "[loop]") {
  CallbackLedger ledger;
  auto loop = Loop::start("test");
  Loop& inside = *loop;
  for (int i = 0; i < 100; ++i) {
    loop->post([&, i] {
      expected(ledger, "task " + std::to_string(i))();
      inside.post(expected(ledger, "task posted by " + std::to_string(i)));
    });
  }
  loop.reset();
  CHECK(ledger.allCalled());
}

TEST_CASE("a loop that did nothing ends", "[loop]") {
  Loop::start("test").reset();
  SUCCEED();
}

TEST_CASE("a loop that is given up on its own thread runs what was posted, and ends", "[loop]") {
  ThreadEnd end;
  CallbackLedger ledger;
  const auto before = openFiles();
  std::promise<void> released;
  auto loop = Loop::start("test");
  loop->post([&end, &ledger, last = loop, others = released.get_future().share()] {
    end.watch();
    others.wait();
    last->post(expected(ledger, "a task posted by the one that held the loop"));
  });
  loop.reset();
  released.set_value();
  CHECK(ledger.waitForAll());
  CHECK(end.wait());
  CHECK(openFiles() == before);
}

TEST_CASE("a loop may be given up by a timer", "[loop]") {
  ThreadEnd end;
  std::promise<void> released;
  auto loop = Loop::start("test");
  loop->post([&end, last = loop, others = released.get_future().share()] {
    end.watch();
    others.wait();
    auto timer = std::make_shared<std::unique_ptr<LoopTimer>>(std::make_unique<LoopTimer>(*last));
    (*timer)->start(milliseconds(1), [last, timer] { timer->reset(); });
  });
  loop.reset();
  released.set_value();
  CHECK(end.wait());
}

TEST_CASE("loops leave no files behind", "[loop]") {
  {
    const auto warmUp = Loop::start("test");
  }
  const auto before = openFiles();
  for (int i = 0; i < 20; ++i) {
    const auto loop = Loop::start("test");
    onLoop(*loop, [] {});
  }
  CHECK(openFiles() == before);
}
