#include "backend/base/thread_role.h"

#include <pthread.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <thread>

#include "backend/base/timer.h"
#include "test/unit/support/broken_rule.h"

using namespace torchwire;
using Catch::Matchers::Contains;

namespace {

[[gnu::noinline]] void takeTheGil() {
  expectFree("taking the GIL");
}

} // namespace

TEST_CASE("the unit tests run with the thread checks on", "[thread_role]") {
  CHECK(kThreadChecks);
}

TEST_CASE("a thread is free at first, and again after its scopes", "[thread_role]") {
  CHECK_FALSE(isSending());
  CHECK_FALSE(isDelivering());
  {
    const SendScope send;
    CHECK(isSending());
    CHECK_FALSE(isDelivering());
  }
  {
    const DeliverScope deliver;
    CHECK(isDelivering());
    CHECK_FALSE(isSending());
  }
  CHECK_FALSE(isSending());
  CHECK_FALSE(isDelivering());
  takeTheGil();
}

TEST_CASE("scopes nest in themselves and in each other", "[thread_role]") {
  const SendScope outer;
  {
    const DeliverScope callback;
    {
      const SendScope inner;
      CHECK(isSending());
      CHECK(isDelivering());
    }
    CHECK(isSending()); // the outer one still is
    CHECK(isDelivering());
  }
  CHECK(isSending());
  CHECK_FALSE(isDelivering());
}

TEST_CASE("a scope ends with an exception", "[thread_role]") {
  try {
    const SendScope send;
    throw 1;
  } catch (int) {
  }
  CHECK_FALSE(isSending());
}

TEST_CASE("a scope is its own thread's", "[thread_role]") {
  const SendScope send;
  bool other = true;
  std::thread([&] { other = isSending(); }).join();
  CHECK_FALSE(other);
}

TEST_CASE("inside a send nothing may take the GIL", "[thread_role]") {
  const auto outcome = inChild([] {
    const SendScope send;
    takeTheGil();
  });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("taking the GIL inside a send"));
}

TEST_CASE("inside a callback nothing may take the GIL", "[thread_role]") {
  const auto outcome = inChild([] {
    const DeliverScope deliver;
    takeTheGil();
  });
  CHECK(outcome.aborted);
  CHECK_THAT(
      outcome.said, Contains("taking the GIL in a link callback, on a loop or in a timer task"));
}

TEST_CASE("a callback inside a send is named as that", "[thread_role]") {
  const auto outcome = inChild([] {
    const SendScope send;
    const DeliverScope deliver;
    takeTheGil();
  });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("taking the GIL in a link callback inside a send"));
}

TEST_CASE("a broken rule names the thread, and functions that nobody exports", "[thread_role]") {
  const auto outcome = inChild([] {
    std::thread([] {
      pthread_setname_np(pthread_self(), "sender");
      const SendScope send;
      takeTheGil();
    }).join();
  });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("on thread 'sender'"));
  CHECK_THAT(outcome.said, Contains("takeTheGil()+0x"));
}

TEST_CASE("a task of the timer runs as a callback, and so does its end", "[thread_role]") {
  struct SaysItsRole {
    std::promise<bool>* delivering;
    explicit SaysItsRole(std::promise<bool>* p) : delivering(p) {}
    SaysItsRole(SaysItsRole&& other) noexcept
        : delivering(std::exchange(other.delivering, nullptr)) {}
    ~SaysItsRole() {
      if (delivering != nullptr) {
        delivering->set_value(isDelivering());
      }
    }
  };
  std::promise<bool> running;
  std::promise<bool> ending;
  Timer timer;
  timer.after(std::chrono::milliseconds(0), [&running, end = SaysItsRole(&ending)] {
    running.set_value(isDelivering());
  });
  CHECK(running.get_future().get());
  CHECK(ending.get_future().get());
}
