#include "backend/base/buffer_pool.h"

#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace torchwire {
namespace {

constexpr size_t kMiB = 1 << 20;

struct Pool {
  explicit Pool(size_t limit = 64 * kMiB, std::chrono::milliseconds keep = BufferPool::kKeep)
      : pool(std::make_shared<BufferPool>(limit, timer, keep)) {}
  ~Pool() {
    pool->close();
  }
  Timer timer;
  std::shared_ptr<BufferPool> pool;
};

void waitUntilNothingIsKept(const BufferPool& pool) {
  while (pool.usage().kept != 0) { // Catch2's own limit ends a test that waits for ever
    std::this_thread::yield();
  }
}

TEST_CASE("BufferPool: a buffer that was let go is lent again", "[buffer_pool]") {
  Pool one;
  for (const size_t length : {kMiB, 5 * kMiB, 16 * kMiB}) {
    auto first = one.pool->allocate(length);
    std::memset(first.get(), 1, length);
    const void* const where = first.get();
    CHECK(reinterpret_cast<uintptr_t>(where) % 64 == 0);
    const auto other = one.pool->allocate(length);
    CHECK(other.get() != where);
    first.reset();
    CHECK(one.pool->allocate(length).get() == where);
    CHECK(one.pool->allocate(length - 1).get() == where);
  }
}

TEST_CASE(
    "BufferPool: what is lent and kept is counted, and wastes an eighth at most", "[buffer_pool]") {
  Pool one;
  for (size_t length = 64 * 1024; length < 64 * kMiB; length = length * 5 / 4 + 1) {
    const auto buffer = one.pool->allocate(length);
    CHECK(one.pool->usage().lent >= length);
    CHECK(one.pool->usage().lent <= length + length / 8 + 4096);
  }
  CHECK(one.pool->usage().lent == 0);
  CHECK(one.pool->usage().kept > 0);
  CHECK(one.pool->usage().kept <= 64 * kMiB);
}

TEST_CASE("BufferPool: what is small, or nothing, is not its affair", "[buffer_pool]") {
  Pool one;
  CHECK(one.pool->allocate(0) == nullptr);
  auto small = one.pool->allocate(1000);
  CHECK(reinterpret_cast<uintptr_t>(small.get()) % 64 == 0);
  std::memset(small.get(), 1, 1000);
  small.reset();
  CHECK(one.pool->usage().kept == 0);
}

TEST_CASE(
    "BufferPool: keeps no more than its limit, and lets the oldest go first", "[buffer_pool]") {
  Pool one(3 * kMiB);
  auto a = one.pool->allocate(kMiB);
  auto b = one.pool->allocate(2 * kMiB);
  auto c = one.pool->allocate(kMiB);
  auto large = one.pool->allocate(8 * kMiB);
  const void* const whereB = b.get();
  a.reset();
  b.reset();
  CHECK(one.pool->usage().kept == 3 * kMiB);
  c.reset();
  CHECK(one.pool->usage().kept == 3 * kMiB);
  CHECK(one.pool->allocate(2 * kMiB).get() == whereB);
  large.reset(); // more than all that may be kept
  CHECK(one.pool->usage().kept == 0);
  Pool none(0);
  none.pool->allocate(kMiB);
  CHECK(none.pool->usage().kept == 0);
}

TEST_CASE("BufferPool: gives back what nobody asks for", "[buffer_pool]") {
  Pool one(64 * kMiB, std::chrono::milliseconds(100));
  one.pool->allocate(kMiB);
  one.pool->allocate(7 * kMiB);
  CHECK(one.pool->usage().kept == 8 * kMiB);
  waitUntilNothingIsKept(*one.pool);
  one.pool->allocate(kMiB); // the clock runs again
  waitUntilNothingIsKept(*one.pool);
}

TEST_CASE("BufferPool: buffers outlive its use, and the pool itself", "[buffer_pool]") {
  std::shared_ptr<void> kept;
  {
    Pool one;
    kept = one.pool->allocate(kMiB);
    auto other = one.pool->allocate(kMiB);
    one.pool->close();
    other.reset();
    CHECK(one.pool->usage().kept == 0);
    CHECK(one.pool->usage().lent == kMiB);
  }
  std::memset(kept.get(), 1, kMiB); // under ASan and Valgrind: still there
}

TEST_CASE("BufferPool: refuses what no memory holds", "[buffer_pool]") {
  Pool one;
  CHECK_THROWS_AS(one.pool->allocate(SIZE_MAX), std::bad_alloc);
  CHECK_THROWS_AS(one.pool->allocate(SIZE_MAX / 4), std::bad_alloc);
  CHECK(one.pool->usage().lent == 0);
}

TEST_CASE("BufferPool: many threads lend and let go, and no two have the same", "[buffer_pool]") {
  Pool one(8 * kMiB);
  std::atomic<int> spoiled{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::shared_ptr<void>> held;
      for (int i = 0; i < 500; ++i) {
        const size_t length = kMiB << (i % 3);
        auto buffer = one.pool->allocate(length);
        auto* const bytes = static_cast<volatile char*>(buffer.get());
        bytes[0] = static_cast<char>(t);
        bytes[length - 1] = static_cast<char>(i);
        std::this_thread::yield();
        spoiled +=
            bytes[0] == static_cast<char>(t) && bytes[length - 1] == static_cast<char>(i) ? 0 : 1;
        held.push_back(std::move(buffer));
        if (held.size() > 3) {
          held.erase(held.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(spoiled == 0);
  CHECK(one.pool->usage().lent == 0);
}

} // namespace
} // namespace torchwire
