#include "backend/transport/process_watch.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "backend/transport/handshake_socket.h"
#include "test/unit/support/notifier.h"
#include "test/unit/support/open_files.h"

using namespace torchwire;

namespace {

// A child that does nothing until it is killed, or this process ends.
class Child {
 public:
  Child() {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      waitAndReplaceProgram(ends[0], ends[1]);
    }
    ::close(ends[0]);
    request_ = Descriptor(ends[1]);
  }
  ~Child() {
    kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  ProcessIdentity identity() const {
    ProcessIdentity identity = ProcessIdentity::ofThisProcess();
    identity.pid = pid_;
    identity.startTime = statusOfProcess(pid_).value().startTime;
    return identity;
  }
  // Runs another program, which the kernel tells nobody.
  void replaceProgram() const {
    REQUIRE(::write(request_.get(), "x", 1) == 1);
    const uint64_t former = ProcessIdentity::ofThisProcess().stack;
    while (stack() == former || stack() == 0) {
      sched_yield();
    }
  }
  // It stays a zombie.
  void end() const {
    ::kill(pid_, SIGKILL);
  }
  void kill() {
    if (pid_ != 0) {
      end();
      ::waitpid(std::exchange(pid_, 0), nullptr, 0);
    }
  }

 private:
  // By the system's own calls: the sanitizers' wait for locks that the fork may have copied locked.
  [[noreturn]] static void waitAndReplaceProgram(int request, int parents) {
    ::syscall(SYS_close, parents);
    char byte = 0;
    if (::syscall(SYS_read, request, &byte, 1) == 1) {
      ::execl("/bin/sleep", "sleep", "60", nullptr);
    }
    ::_exit(1);
  }
  uint64_t stack() const {
    return statusOfProcess(pid_).value().stack;
  }
  pid_t pid_ = 0;
  Descriptor request_;
};

struct Watcher {
  std::shared_ptr<Loop> loop = Loop::start("test_loop");
  ProcessWatch processes{loop};
  Notifier notifier;
  std::atomic<int> ends{0};
  std::string how; // the last one

  bool watch(const ProcessIdentity& process) {
    return processes.watch(1, process, [this](const std::string& end) {
      how = end;
      ++ends;
      notifier.notify();
    });
  }
  bool sawAnEnd() {
    return notifier.waitUntil([this] { return ends == 1; });
  }
};

} // namespace

TEST_CASE("a process tells who it is", "[process_watch]") {
  const ProcessIdentity self = ProcessIdentity::ofThisProcess();
  CHECK(self.isKnown());
  CHECK(self.pid == getpid());
  CHECK(self == ProcessIdentity::ofThisProcess());
  CHECK(self.sharesNumbersWith(self));
  CHECK_FALSE(self.sharesNumbersWith({}));
}

TEST_CASE("the end of a process is noticed, once, before anybody waits for it", "[process_watch]") {
  Watcher watcher;
  const Child child;
  REQUIRE(watcher.watch(child.identity()));
  CHECK(watcher.processes.watches(1));
  CHECK(watcher.ends == 0);
  child.end();
  CHECK(watcher.sawAnEnd());
  CHECK_FALSE(watcher.processes.watches(1));
}

TEST_CASE("a process that is gone already has ended", "[process_watch]") {
  Watcher watcher;
  Child child;
  ProcessIdentity identity = child.identity();
  SECTION("and nobody has its number") {
    child.kill();
  }
  SECTION("and another one has its number") {
    --identity.startTime;
  }
  REQUIRE(watcher.watch(identity));
  CHECK(watcher.sawAnEnd());
}

TEST_CASE("a process that runs another program is over, once somebody looks", "[process_watch]") {
  Watcher watcher;
  const Child child;
  const ProcessIdentity identity = child.identity();
  REQUIRE(watcher.watch(identity));
  watcher.processes.look(1);
  CHECK(presenceOf(identity) == Presence::lives);
  child.replaceProgram();
  CHECK(presenceOf(identity) == Presence::replaced);
  CHECK(watcher.ends == 0);
  watcher.processes.look(1);
  CHECK(watcher.sawAnEnd());
  CHECK(watcher.how == "runs another program now (exec)");
}

TEST_CASE("a process of another host or namespace is not watched", "[process_watch]") {
  Watcher watcher;
  const Child child;
  ProcessIdentity identity = child.identity();
  SECTION("of another boot") {
    identity.boot = "another";
  }
  SECTION("of another namespace") {
    ++identity.pidNamespace;
  }
  SECTION("of which nothing is known") {
    identity = {};
  }
  CHECK_FALSE(watcher.watch(identity));
  CHECK_FALSE(watcher.processes.watches(1));
}

TEST_CASE("what is forgotten is not told of, and leaves no file open", "[process_watch]") {
  Watcher watcher;
  const Child child;
  const auto before = openFiles();
  REQUIRE(watcher.watch(child.identity()));
  SECTION("one") {
    watcher.processes.forget(1);
  }
  SECTION("all") {
    watcher.processes.stop();
  }
  watcher.processes.stop(); // what was posted has run
  child.end();
  CHECK(openFiles() == before);
  CHECK(watcher.ends == 0);
}
