#include "backend/base/lock_rank.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <string>
#include <thread>

#include "backend/base/annotations.h"
#include "backend/base/thread_role.h"
#include "test/unit/support/broken_rule.h"

using namespace torchwire;
using Catch::Matchers::Contains;

TEST_CASE("locks are taken down the table", "[lock_rank]") {
  Mutex outer(LockRank::contextRegistry);
  Mutex middle(LockRank::callTable);
  Mutex inner(LockRank::timer);
  MutexLock first(outer);
  {
    MutexLock second(middle);
    MutexLock third(inner);
  }
  MutexLock third(inner); // and some may be left out
  CHECK(std::string(nameOf(LockRank::timer)) == "timer");
}

TEST_CASE("a lock out of order aborts, and both are named", "[lock_rank]") {
  const auto outcome = inChild([] {
    Mutex outer(LockRank::callTable);
    Mutex inner(LockRank::timer);
    MutexLock first(inner);
    MutexLock second(outer);
  });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("taking lock 'callTable' under 'timer'"));
}

TEST_CASE("a lock twice aborts and does not wait, and so do two of a kind", "[lock_rank]") {
  CHECK(inChild([] {
          Mutex mutex(LockRank::timer);
          MutexLock first(mutex);
          MutexLock second(mutex);
        }).aborted);
  const auto outcome = inChild([] {
    Mutex one(LockRank::timer);
    Mutex other(LockRank::timer);
    MutexLock first(one);
    MutexLock second(other);
  });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("taking lock 'timer' under 'timer'"));
}

TEST_CASE("locks may be released in any order", "[lock_rank]") {
  Mutex outer(LockRank::callTable);
  Mutex inner(LockRank::timer);
  {
    MutexLock first(outer);
    MutexLock second(inner);
    first.unlock();
    CHECK(inChild([&] { expectUnlocked("waiting"); }).aborted); // the inner one is still held
  }
  expectUnlocked("waiting");
  MutexLock again(outer);
}

TEST_CASE("who waits for a condition does not hold the lock meanwhile", "[lock_rank]") {
  Mutex outer(LockRank::callTable);
  Mutex inner(LockRank::timer);
  std::condition_variable_any changed;
  MutexLock lock(inner);
  changed.wait_for(lock, std::chrono::milliseconds(1));
  lock.unlock();
  {
    MutexLock other(outer);
  }
  lock.lock();
  CHECK(inChild([&] { MutexLock other(outer); }).aborted);
}

TEST_CASE("locks of other threads do not count", "[lock_rank]") {
  Mutex outer(LockRank::callTable);
  Mutex inner(LockRank::timer);
  MutexLock lock(inner);
  std::thread([&] { MutexLock other(outer); }).join();
}

TEST_CASE("a lock that is not ours has its place too", "[lock_rank]") {
  Mutex registry(LockRank::contextRegistry);
  Mutex table(LockRank::callTable);
  {
    MutexLock outer(registry);
    const ForeignLock container(LockRank::autogradContainer);
    MutexLock inner(table);
  }
  const auto outcome = inChild([&] {
    const ForeignLock container(LockRank::autogradContainer);
    MutexLock outer(registry);
  });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("taking lock 'contextRegistry' under 'autogradContainer'"));
}

TEST_CASE("what may be done only without a lock aborts under one", "[lock_rank]") {
  const auto outcome = inChild([] {
    Mutex mutex(LockRank::timer);
    MutexLock lock(mutex);
    expectUnlocked("taking the GIL");
  });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("taking the GIL under lock 'timer'"));
}

TEST_CASE("inside a send no lock is taken that goes before libtorch's", "[lock_rank]") {
  Mutex registry(LockRank::contextRegistry);
  Mutex table(LockRank::callTable);
  const SendScope send;
  {
    MutexLock lock(table);
  }
  const auto outcome = inChild([&] { MutexLock lock(registry); });
  CHECK(outcome.aborted);
  CHECK_THAT(outcome.said, Contains("taking lock 'contextRegistry' inside a send"));
}
