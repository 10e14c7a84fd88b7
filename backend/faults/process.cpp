#include "backend/faults/process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "backend/annotations.h"
#include "backend/log.h"

extern char** environ;

namespace torchwire::faults {
namespace {

// A process that stands still cannot wake itself, so a shell does: once it stands still, for a short pause may be
// over before. In the background, so that nobody has to wait for its end.
std::string wakingScript(double seconds) {
  char sleep[64];
  std::snprintf(sleep, sizeof(sleep), "sleep %.6f", seconds);
  const std::string pid = std::to_string(::getpid());
  return "(" + std::string(sleep) + "; while [ -d /proc/" + pid +
      " ]; do if grep -q '^State:.T' /proc/" + pid + "/status; then kill -CONT " + pid +
      "; break; fi; sleep 0.01; done) </dev/null >/dev/null 2>&1 &";
}

/// Thread-safe.
class ThisProcess final : public Process {
 public:
  void pause(double seconds) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_); // or the end of one pause would end another
    std::string shell = "sh";
    std::string option = "-c";
    std::string script = wakingScript(seconds);
    char* const arguments[] = {shell.data(), option.data(), script.data(), nullptr};
    pid_t child = 0;
    const int error = ::posix_spawn(&child, "/bin/sh", nullptr, nullptr, arguments, environ);
    if (error != 0) { // then nobody would wake this process
      log(LogLevel::error,
          std::string("no pause, for want of a process to end it: ") + std::strerror(error));
      return;
    }
    while (::waitpid(child, nullptr, 0) < 0 &&
           errno == EINTR) { // the shell that has begun the other
    }
    ::raise(SIGSTOP); // to this thread, which would go on for a moment if another took the signal
  }

  void kill() override {
    ::kill(::getpid(), SIGKILL);
    for (;;) { // the signal may hit another thread first, and this one must not go on
      ::pause();
    }
  }

 private:
  Mutex mutex_;
};

} // namespace

std::shared_ptr<Process> thisProcess() {
  return std::make_shared<ThisProcess>();
}

} // namespace torchwire::faults
