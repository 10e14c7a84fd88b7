// What faults do to a true process: to a child of the test's.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "backend/faults/process.h"

using namespace torchwire::faults;

namespace {

template <typename Deed>
pid_t child(Deed deed) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    deed();
    ::_exit(7);
  }
  return pid;
}

} // namespace

TEST_CASE("a process that is paused stands still, and then goes on", "[fault_process]") {
  const auto start = std::chrono::steady_clock::now();
  const pid_t pid = child([] { thisProcess()->pause(0.1); });
  int status = 0;
  REQUIRE(::waitpid(pid, &status, WUNTRACED) == pid);
  CHECK(WIFSTOPPED(status));
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(100));
}

TEST_CASE("the shortest pause ends, too", "[fault_process]") {
  const pid_t pid = child([] { thisProcess()->pause(0); });
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status));
}

TEST_CASE("a process that is killed cannot say anything about it", "[fault_process]") {
  const pid_t pid = child([] { thisProcess()->kill(); });
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGKILL);
}
