// What a process says that breaks a rule of threads.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

/// How a child process ended that did `deed`, and what it wrote to standard error.
struct ChildEnd {
  bool aborted = false;
  std::string said;
};

template <typename Deed>
ChildEnd inChild(Deed deed) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) {
    return {};
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::signal(SIGABRT, SIG_DFL); // Catch2's handler would report a failed test
    ::dup2(pipe[1], STDERR_FILENO);
    ::close(pipe[0]);
    deed();
    ::_exit(0);
  }
  ::close(pipe[1]);
  ChildEnd outcome;
  std::array<char, 4096> part{};
  for (ssize_t count = 0; (count = ::read(pipe[0], part.data(), part.size())) > 0;) {
    outcome.said.append(part.data(), static_cast<size_t>(count));
  }
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(pid, &status, 0);
  outcome.aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  return outcome;
}
