// Requests that a loop's own thread runs, and what happens when one takes long.
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/base/thread_pool.h"
#include "backend/base/thread_role.h"
#include "backend/transport/handshake_socket.h"
#include "backend/transport/loop.h"
#include "backend/transport/loop_watch.h"
#include "test/unit/support/callback_ledger.h"
#include "test/unit/support/on_loop.h"
#include "test/unit/support/open_files.h"
#include "test/unit/support/thread_end.h"

using namespace torchwire;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr const char* kOwn = "aside_loop";
constexpr const char* kPool = "aside_pool";

std::string threadName() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

void keepBusy(Clock::duration time) {
  const auto begin = Clock::now();
  while (Clock::now() - begin < time) {
  }
}

template <typename T>
T soon(std::future<T> result) {
  if (result.wait_for(Notifier::kPatience) != std::future_status::ready) {
    throw std::runtime_error("a task aside does not come to its end");
  }
  return result.get();
}

/// What a task waits for that another one opens.
class Gate {
 public:
  void open() {
    opened_.set_value();
  }
  /// False if nobody opens it.
  bool pass() const {
    return future_.wait_for(Notifier::kPatience) == std::future_status::ready;
  }

 private:
  std::promise<void> opened_;
  const std::shared_future<void> future_ = opened_.get_future().share();
};

/// A loop and a pool for what runs aside.
struct Asides {
  ~Asides() {
    if (loop) {
      loop->stopAside();
    }
  }

  bool run(Task task) {
    return onLoop(*loop, [&] { return loop->runAside(std::move(task), pool); });
  }

  /// What `action` returns when it runs aside.
  template <typename Action>
  auto resultOf(Action action) {
    std::promise<decltype(action())> result;
    run([&] { result.set_value(action()); });
    return soon(result.get_future());
  }

  /// Runs things aside until traffic is so hot that one runs on a thread of the loop's own.
  void heat() {
    runOnOwn([] {});
  }

  /// Runs `action` aside on a thread of the loop's own. Returns when it has begun.
  void runOnOwn(const std::function<void()>& action) {
    const auto end = Clock::now() + Notifier::kPatience;
    for (;;) {
      std::promise<bool> begun;
      auto isOwn = begun.get_future();
      run([&action, begun = std::move(begun)]() mutable {
        const std::function<void()> ours = threadName() == kOwn ? action : nullptr;
        begun.set_value(static_cast<bool>(ours));
        if (ours) {
          ours();
        }
      });
      if (soon(std::move(isOwn))) {
        return;
      }
      if (Clock::now() > end) {
        throw std::runtime_error("a loop runs nothing on its own thread");
      }
    }
  }

  ThreadPool pool{4, kPool};
  std::shared_ptr<Loop> loop = Loop::start(kOwn);
};

/// A task aside that holds a thread of the loop's own up until it is released.
class Blocked {
 public:
  explicit Blocked(Asides& asides) {
    asides.runOnOwn([this] { result_.set_value(gate_.pass()); });
  }
  /// On any thread, once.
  void release() {
    gate_.open();
  }
  /// Whether somebody has released it.
  bool ended() {
    return soon(result_.get_future());
  }

 private:
  Gate gate_;
  std::promise<bool> result_;
};

} // namespace

// ---- where ----------------------------------------------------------------------------------------

TEST_CASE("a task aside that comes alone runs on the pool", "[loop_aside]") {
  Asides asides;
  CHECK(asides.resultOf(threadName) == kPool);
}

TEST_CASE("tasks aside that come close together run on the loop's own thread", "[loop_aside]") {
  Asides asides;
  asides.heat(); // throws if they do not
  SUCCEED();
}

TEST_CASE("a task aside is free, and has not the loop's role", "[loop_aside]") {
  Asides asides;
  std::promise<std::pair<bool, bool>> result;
  asides.runOnOwn([&] { result.set_value({isFree(), asides.loop->isLoopThread()}); });
  const auto [free, loopThread] = soon(result.get_future());
  CHECK(free);
  CHECK_FALSE(loopThread);
}

TEST_CASE("a task aside may drive the loop", "[loop_aside]") {
  Asides asides;
  std::promise<bool> drove;
  asides.runOnOwn([&] {
    const auto end = Clock::now() + Notifier::kPatience;
    bool hadRole = false;
    while (!hadRole && Clock::now() < end) {
      asides.loop->drive([&] { return hadRole = hadRole || asides.loop->isLoopThread(); });
    }
    drove.set_value(hadRole);
  });
  CHECK(soon(drove.get_future()));
  onLoop(*asides.loop, [] {});
}

TEST_CASE("a task aside that throws does not end the loop", "[loop_aside]") {
  Asides asides;
  asides.runOnOwn([] { throw std::runtime_error("as the test wants it"); });
  CHECK(asides.resultOf([] { return 5; }) == 5);
}

TEST_CASE("what a task aside holds goes without the loop's role", "[loop_aside]") {
  struct NotesItsEnd {
    explicit NotesItsEnd(std::promise<bool>& promise) : free(promise) {}
    ~NotesItsEnd() {
      free.set_value(isFree());
    }
    std::promise<bool>& free;
  };
  Asides asides;
  asides.heat();
  std::promise<bool> free;
  asides.run([held = std::make_unique<NotesItsEnd>(free)] {});
  CHECK(soon(free.get_future()));
}

TEST_CASE("a pool that has ended leaves a task aside to its caller", "[loop_aside]") {
  Asides asides;
  asides.pool.join();
  bool ran = false;
  Task task([&] { ran = true; });
  CHECK_FALSE(
      onLoop(*asides.loop, [&] { return asides.loop->runAside(std::move(task), asides.pool); }));
  REQUIRE(task);
  task();
  CHECK(ran);
}

// ---- when one takes long --------------------------------------------------------------------------

TEST_CASE("a task aside that blocks does not hold up what is posted", "[loop_aside]") {
  Asides asides;
  Blocked blocked(asides);
  asides.loop->post([&] { blocked.release(); });
  CHECK(blocked.ended());
}

TEST_CASE("a task aside that blocks does not hold up the next", "[loop_aside]") {
  Asides asides;
  Blocked blocked(asides);
  asides.run([&] { blocked.release(); });
  CHECK(blocked.ended());
}

TEST_CASE("a task aside that blocks does not hold up a timer", "[loop_aside]") {
  Asides asides;
  OnLoop<LoopTimer> timer(asides.loop);
  LoopTimer* const bound = timer([](LoopTimer& it) { return &it; });
  asides.heat();
  Gate gate;
  std::promise<bool> passed;
  onLoop(*asides.loop, [&] { bound->start(milliseconds(20), [&] { gate.open(); }); });
  asides.runOnOwn([&] { passed.set_value(gate.pass()); });
  CHECK(soon(passed.get_future()));
}

TEST_CASE("what waits behind a task aside that blocks runs on the pool", "[loop_aside]") {
  Asides asides;
  const auto end = Clock::now() + Notifier::kPatience;
  std::string first;
  while (first != kOwn && Clock::now() < end) {
    asides.heat();
    Gate gate;
    std::promise<std::pair<std::string, bool>> blocked;
    std::promise<std::string> second, third;
    onLoop(*asides.loop, [&] {
      const auto run = [&](Task task) { asides.loop->runAside(std::move(task), asides.pool); };
      run([&] {
        const bool passed = gate.pass();
        blocked.set_value({threadName(), passed});
      });
      run([&] { second.set_value(threadName()); });
      run([&] { third.set_value(threadName()); });
    });
    const std::string names = soon(second.get_future()) + " " + soon(third.get_future());
    gate.open();
    bool passed = false;
    std::tie(first, passed) = soon(blocked.get_future());
    CHECK(passed);
    if (first == kOwn) {
      CHECK(names == std::string(kPool) + " " + kPool);
    }
  }
  CHECK(first == kOwn);
}

TEST_CASE("one task aside after another may block", "[loop_aside]") {
  Asides asides;
  for (int i = 0; i < 6; ++i) {
    Blocked blocked(asides);
    asides.loop->post([&] { blocked.release(); });
    REQUIRE(blocked.ended());
  }
}

TEST_CASE("a task aside that blocks while another does leaves the loop free", "[loop_aside]") {
  Asides asides;
  Blocked first(asides);
  Gate gate;
  std::promise<bool> second;
  asides.run([&] { second.set_value(gate.pass()); });
  asides.loop->post([&] {
    gate.open();
    first.release();
  });
  CHECK(first.ended());
  CHECK(soon(second.get_future()));
}

TEST_CASE("a loop whose thread was held up runs tasks aside again", "[loop_aside]") {
  Asides asides;
  {
    Blocked blocked(asides);
    asides.loop->post([&] { blocked.release(); });
    REQUIRE(blocked.ended());
  }
  asides.heat();
  SUCCEED();
}

// ---- the end of asides ----------------------------------------------------------------------------

TEST_CASE("stopping what runs aside waits for it", "[loop_aside]") {
  Asides asides;
  Blocked blocked(asides);
  auto stopped = std::async(std::launch::async, [&] { asides.loop->stopAside(); });
  CHECK(stopped.wait_for(milliseconds(20)) == std::future_status::timeout);
  blocked.release();
  soon(std::move(stopped));
  CHECK(blocked.ended());
}

TEST_CASE("a task aside may stop what runs aside", "[loop_aside]") {
  Asides asides;
  std::promise<void> stopped;
  asides.runOnOwn([&] {
    asides.loop->stopAside();
    stopped.set_value();
  });
  soon(stopped.get_future());
  SUCCEED();
}

TEST_CASE("when asides are stopped, all tasks run on the pool", "[loop_aside]") {
  Asides asides;
  asides.heat();
  asides.loop->stopAside();
  for (int i = 0; i < 100; ++i) {
    CHECK(asides.resultOf(threadName) == kPool);
  }
}

TEST_CASE("what waits to run aside as that is stopped runs", "[loop_aside]") {
  CallbackLedger ledger;
  Asides asides;
  asides.heat();
  onLoop(*asides.loop, [&] {
    for (int i = 0; i < 10; ++i) {
      asides.loop->runAside([sent = ledger.expect("a task aside")] { sent(Error()); }, asides.pool);
    }
  });
  asides.loop->stopAside();
  asides.pool.join();
  CHECK(ledger.allCalled());
}

// ---- the end of the loop --------------------------------------------------------------------------

TEST_CASE("a loop whose thread was held up ends", "[loop_aside]") {
  Loop::start(kOwn).reset();
  const auto before = openFiles();
  Asides asides;
  Blocked blocked(asides);
  asides.loop->post([&] { blocked.release(); });
  CHECK(blocked.ended());
  asides.loop.reset();
  CHECK(openFiles() == before);
}

TEST_CASE("what waits to run aside as the loop ends runs", "[loop_aside]") {
  CallbackLedger ledger;
  Asides asides;
  asides.heat();
  onLoop(*asides.loop, [&] {
    for (int i = 0; i < 10; ++i) {
      asides.loop->runAside([sent = ledger.expect("a task aside")] { sent(Error()); }, asides.pool);
    }
  });
  asides.loop.reset();
  asides.pool.join();
  CHECK(ledger.allCalled());
}

TEST_CASE("a loop that is given up while a task aside waits runs what was posted", "[loop_aside]") {
  Asides asides;
  Blocked blocked(asides);
  asides.loop->post([&] { blocked.release(); });
  asides.loop.reset();
  CHECK(blocked.ended());
}

TEST_CASE("a loop that is given up aside runs what was posted, and ends", "[loop_aside]") {
  CallbackLedger ledger;
  Loop::start(kOwn).reset();
  const auto before = openFiles();
  bool tried = false;
  for (const auto until = Clock::now() + Notifier::kPatience; !tried && Clock::now() < until;) {
    Asides asides;
    asides.heat();
    std::promise<void> released;
    std::promise<bool> isOwn;
    ThreadEnd end;
    asides.loop->post([&, others = released.get_future().share(), last = asides.loop]() mutable {
      others.wait();
      Loop& loop = *last;
      loop.runAside([] {}, asides.pool); // for the next to come close
      loop.runAside(
          [&, last = std::move(last)] {
            end.watch();
            last->post([sent = ledger.expect("a task posted aside")] { sent(Error()); });
            isOwn.set_value(threadName() == kOwn);
          },
          asides.pool);
    });
    asides.loop.reset();
    released.set_value();
    tried = soon(isOwn.get_future());
    CHECK(ledger.waitForAll());
    asides.pool.join();
    CHECK(end.wait());
  }
  CHECK(tried);
  CHECK(openFiles() == before);
}

TEST_CASE("a loop that is given up aside by one that was held up ends", "[loop_aside]") {
  CallbackLedger ledger;
  Loop::start(kOwn).reset();
  const auto before = openFiles();
  Asides asides;
  ThreadEnd end;
  Gate posted, released;
  auto last = std::make_shared<std::shared_ptr<Loop>>(asides.loop);
  asides.runOnOwn([&, last] {
    end.watch();
    posted.pass(); // which only another thread's task opens
    released.pass();
    (*last)->post([sent = ledger.expect("a task posted aside")] { sent(Error()); });
    last->reset();
  });
  onLoop(*asides.loop, [&] { posted.open(); });
  asides.loop.reset();
  released.open();
  CHECK(end.wait());
  CHECK(ledger.allCalled());
  CHECK(openFiles() == before);
}

// ---- together -------------------------------------------------------------------------------------

TEST_CASE("tasks aside that take as long as they like all run once", "[loop_aside]") {
  constexpr size_t kThreads = 3;
  constexpr size_t kTasks = 300;
  Asides asides;
  std::vector<std::vector<std::atomic<int>>> runs(kThreads);
  for (auto& ofThread : runs) {
    ofThread = std::vector<std::atomic<int>>(kTasks);
  }
  size_t posted = 0; // by the loop's role alone
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, random = std::mt19937(static_cast<unsigned>(t))]() mutable {
      for (size_t i = 0; i < kTasks; ++i) {
        const microseconds takes(random() % 10 == 0 ? 1000 : random() % 50);
        asides.loop->post([&, t, i, takes] {
          ++posted;
          asides.loop->runAside(
              [&, t, i, takes] {
                keepBusy(takes);
                ++runs[t][i];
              },
              asides.pool);
        });
        if (random() % 4 == 0) {
          asides.loop->drive([&, looks = 0]() mutable { return ++looks > 20; });
        }
        keepBusy(microseconds(random() % 300));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  onLoop(*asides.loop, [] {});
  asides.loop->stopAside();
  asides.pool.join();
  CHECK(posted == kThreads * kTasks);
  for (const auto& ofThread : runs) {
    for (const auto& count : ofThread) {
      REQUIRE(count == 1);
    }
  }
}

TEST_CASE("a request that comes as the keeper falls asleep runs at once", "[loop_aside]") {
  constexpr int kRounds = 41;
  Asides asides;
  const Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  std::promise<void> ran;
  OnLoop<FdWatch> watch(asides.loop, event.get(), [&] {
    eventfd_t count = 0;
    eventfd_read(event.get(), &count);
    asides.loop->runAside([&ran] { ran.set_value(); }, asides.pool);
  });
  watch([](FdWatch& bound) { bound.want(FdWatch::readable); });
  std::vector<Clock::duration> times;
  for (int round = 0; round < kRounds; ++round) {
    asides.heat();
    ran = std::promise<void>();
    const auto begun = Clock::now();
    // Written by a task, so that the keeper finds it in its last look at the sockets.
    asides.loop->post([&] { eventfd_write(event.get(), 1); });
    soon(ran.get_future());
    times.push_back(Clock::now() - begun);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  CHECK(times[kRounds / 2] < milliseconds(3)); // it would doze for 5
}
