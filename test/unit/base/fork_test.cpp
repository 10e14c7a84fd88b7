#include "backend/base/fork.h"

#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <stdexcept>

#include "backend/base/buffer_pool.h"
#include "backend/base/thread_pool.h"
#include "backend/base/timer.h"

namespace torchwire {
namespace {

/// What `look` returns in a forked child, as its exit status.
template <typename Look>
int inChild(const Look& look) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::_Exit(look());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

bool isOpen(int descriptor) {
  return ::fcntl(descriptor, F_GETFD) != -1;
}

TEST_CASE("a forked child closes what it is to close, and nothing else", "[fork]") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  closeInForkedChild(ends[0]);
  closeInForkedChild(ends[1]);
  keepInForkedChild(ends[1]);
  CHECK(inChild([&] { return !isOpen(ends[0]) && isOpen(ends[1]) ? 0 : 1; }) == 0);
  CHECK(isOpen(ends[0]));

  keepInForkedChild(ends[0]);
  CHECK(inChild([&] { return isOpen(ends[0]) ? 0 : 1; }) == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("descriptors beyond all tables are of no interest", "[fork]") {
  for (const int descriptor : {-1, 1 << 20, INT32_MAX}) {
    closeInForkedChild(descriptor);
    keepInForkedChild(descriptor);
  }
  CHECK(inChild([] { return 0; }) == 0);
}

TEST_CASE("each child knows that it is another process than its parent", "[fork]") {
  const uint64_t here = forkGeneration();
  CHECK(inChild([&] {
          const bool isAnother = forkGeneration() != here;
          const uint64_t there = forkGeneration();
          return isAnother && inChild([&] { return forkGeneration() != there ? 0 : 1; }) == 0 ? 0
                                                                                              : 1;
        }) == 0);
  CHECK(forkGeneration() == here);
}

TEST_CASE("a forked child lets go of received memory without the pool", "[fork]") {
  Timer timer;
  const auto pool = std::make_shared<BufferPool>(size_t{1} << 30, timer);
  std::shared_ptr<void> buffer = pool->allocate(size_t{1} << 20);
  CHECK(inChild([&] {
          const size_t before = pool->usage().kept;
          buffer.reset();
          return pool->usage().kept == before ? 0 : 1;
        }) == 0);
  CHECK(pool->usage().lent >= size_t{1} << 20);
}

} // namespace
TEST_CASE("a child that a task of a pool forks ends with the task", "[fork]") {
  for (const bool raises : {false, true}) {
    std::promise<int> ended;
    ThreadPool pool(1, "test");
    REQUIRE(pool.run([&] {
      const pid_t child = ::fork();
      if (child != 0) {
        int status = 0;
        ::waitpid(child, &status, 0);
        ended.set_value(status);
      } else if (raises) {
        throw std::runtime_error("in the child");
      }
    }));
    const int status = ended.get_future().get();
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == EXIT_FAILURE);
    pool.join();
  }
}

} // namespace torchwire
