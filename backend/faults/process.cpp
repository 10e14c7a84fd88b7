#include "backend/faults/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "backend/base/annotations.h"
#include "backend/base/log.h"

extern char** environ;

namespace torchwire::faults {
namespace {

// A process that stands still cannot wake itself, so a shell does: once it stands still, for a short pause may be
// over before. It looks for the end (Z, X), too, after which nobody has to be woken.
std::string wakingScript(double seconds) {
  char sleep[64];
  std::snprintf(sleep, sizeof(sleep), "sleep %.6f; ", seconds);
  const std::string pid = std::to_string(::getpid());
  return sleep + ("until ! [ -d /proc/" + pid + " ] || grep -q '^State:.[TZX]' /proc/" + pid) +
      "/status; do sleep 0.01; done; kill -CONT " + pid;
}

// 0: none, and an error was logged. It has none of this process's files: whoever waits for their end shall see it.
pid_t startShell(std::string script) {
  std::string shell = "sh";
  std::string option = "-c";
  char* const arguments[] = {shell.data(), option.data(), script.data(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDWR, 0);
  ::posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/sh", &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    log(LogLevel::error,
        std::string("no pause, for want of a process to end it: ") + std::strerror(error));
    return 0;
  }
  return child;
}

/// Thread-safe.
class ThisProcess final : public Process {
 public:
  void pause(double seconds) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_); // or the end of one pause would end another
    const pid_t waker = startShell(wakingScript(seconds));
    if (waker == 0) {
      return;
    }
    ::raise(
        SIGSTOP); // to this thread: were it for any, this one might send the message before it stops
    ::kill(waker, SIGKILL); // somebody else may have been faster, and it must not end a later pause
    while (::waitpid(waker, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  void kill() override {
    flushLog();
    ::kill(::getpid(), SIGKILL);
    for (;;) { // the signal may hit another thread first, and this one must not go on
      ::pause();
    }
  }

 private:
  Mutex mutex_{LockRank::faultProcess};
};

} // namespace

std::shared_ptr<Process> thisProcess() {
  return std::make_shared<ThisProcess>();
}

} // namespace torchwire::faults
