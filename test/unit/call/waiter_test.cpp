#include "backend/call/waiter.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "test/unit/support/notifier.h"

using namespace torchwire;
using std::chrono::microseconds;

namespace {

/// Drives until it is over, but looks only at the start and when it is interrupted.
class SleepyDriver final : public Driver {
 public:
  void drive(const std::function<bool()>& isOver) override {
    drives.set_value();
    wasOver = interrupts_.waitUntil(isOver);
  }
  void interrupt() override {
    ++interrupts;
    interrupts_.notify();
  }

  std::promise<void> drives;
  std::atomic<int> interrupts{0};
  bool wasOver = false;

 private:
  Notifier interrupts_;
};

/// Has no time to drive, as a loop that somebody else drives.
class BusyDriver final : public Driver {
 public:
  void drive(const std::function<bool()>&) override {
    left.set_value();
  }
  void interrupt() override {}

  std::promise<void> left;
};

void keepBusy(microseconds time) {
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < time) {
  }
}

/// A task that notes where it ran.
Task noteThread(std::thread::id& thread) {
  return [&thread] { thread = std::this_thread::get_id(); };
}

} // namespace

TEST_CASE("a task that is given before anybody waits runs on the thread that waits", "[waiter]") {
  Waiter waiter;
  std::thread::id ranOn;
  std::thread([&] { waiter.give(noteThread(ranOn)); }).join();
  CHECK(ranOn == std::thread::id());
  SECTION("without a driver") {
    waiter.await(nullptr)();
  }
  SECTION("with one, which has nothing to wait for") {
    SleepyDriver driver;
    waiter.await (&driver)();
    CHECK(driver.wasOver);
    CHECK(driver.interrupts == 0);
  }
  CHECK(ranOn == std::this_thread::get_id());
}

TEST_CASE("a task that is given while a thread drives ends the drive", "[waiter]") {
  Waiter waiter;
  SleepyDriver driver;
  std::thread::id ranOn;
  std::thread giver([&] {
    driver.drives.get_future().wait();
    waiter.give(noteThread(ranOn));
  });
  waiter.await (&driver)();
  giver.join();
  CHECK(ranOn == std::this_thread::get_id());
  CHECK(driver.wasOver);
}

TEST_CASE("a thread that cannot drive waits all the same", "[waiter]") {
  Waiter waiter;
  BusyDriver driver;
  std::thread::id ranOn;
  std::thread giver([&] {
    driver.left.get_future().wait();
    waiter.give(noteThread(ranOn));
  });
  waiter.await (&driver)();
  giver.join();
  CHECK(ranOn == std::this_thread::get_id());
}

TEST_CASE("a thread without a driver waits for its task", "[waiter]") {
  Waiter waiter;
  std::thread::id ranOn;
  std::promise<void> waits;
  std::thread giver([&] {
    waits.get_future().wait();
    keepBusy(microseconds(500)); // most likely it waits by then
    waiter.give(noteThread(ranOn));
  });
  waits.set_value();
  waiter.await(nullptr)();
  giver.join();
  CHECK(ranOn == std::this_thread::get_id());
}

TEST_CASE("a thread that waits looks from time to time, until the task comes", "[waiter]") {
  Waiter waiter;
  std::thread::id ranOn;
  int looked = 0;
  std::promise<void> lookedThrice;
  std::thread giver([&] {
    lookedThrice.get_future().wait();
    waiter.give(noteThread(ranOn));
  });
  waiter.await(nullptr, [&] {
    if (++looked == 3) {
      lookedThrice.set_value();
    }
  })();
  giver.join();
  CHECK(looked >= 3);
  CHECK(ranOn == std::this_thread::get_id());
}

TEST_CASE("who looks may end the wait", "[waiter]") {
  Waiter waiter;
  int looked = 0;
  bool ran = false;
  waiter.await(nullptr, [&] {
    ++looked;
    waiter.give([&] { ran = true; });
  })();
  CHECK(looked == 1);
  CHECK(ran);
}

TEST_CASE("nobody looks when the task is there", "[waiter]") {
  Waiter waiter;
  waiter.give([] {});
  waiter.await(nullptr, [] { FAIL("it looked"); })();
}

TEST_CASE("a task wakes a thread that sleeps between two looks", "[waiter]") {
  constexpr int kRounds = 20;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    Waiter waiter;
    std::promise<void> looked;
    std::thread giver([&] {
      looked.get_future().wait();
      keepBusy(microseconds(500)); // most likely it sleeps by then, for 100 ms unless it is woken
      waiter.give([] {});
    });
    bool first = true;
    waiter.await(nullptr, [&] {
      if (std::exchange(first, false)) {
        looked.set_value();
      }
    })();
    giver.join();
  }
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(100 * kRounds) / 2);
}

TEST_CASE("what the task holds is gone when the wait is over", "[waiter]") {
  Waiter waiter;
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = held;
  waiter.give([held = std::move(held)] {});
  CHECK_FALSE(watch.expired());
  waiter.await(nullptr)();
  CHECK(watch.expired());
}

TEST_CASE("tasks that are given at any moment all run, and no driver is used later", "[waiter]") {
  constexpr size_t kRounds = 1000;
  const unsigned seed = GENERATE(range(1u, 4u));
  const bool driven = GENERATE(false, true);
  const bool looks = GENERATE(false, true);
  CAPTURE(seed, driven, looks);
  std::vector<std::shared_ptr<Waiter>> waiters(kRounds);
  for (auto& waiter : waiters) {
    waiter = std::make_shared<Waiter>();
  }
  size_t ran = 0; // by the thread that waits
  std::atomic<size_t> begun{0};
  std::thread giver([&] {
    std::mt19937 random(seed);
    for (size_t i = 0; i < kRounds; ++i) {
      while (begun < i) { // so that most of the time both come at once
        std::this_thread::yield();
      }
      keepBusy(microseconds(random() % 10));
      waiters[i]->give([&] { ++ran; });
    }
  });
  for (const auto& waiter : waiters) {
    const auto driver = driven ? std::make_unique<SleepyDriver>() : nullptr; // gone when it is over
    ++begun;
    waiter->await(driver.get(), looks ? [] {} : std::function<void()>())();
  }
  giver.join();
  CHECK(ran == kRounds);
}
