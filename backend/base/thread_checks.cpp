#include "backend/base/thread_checks.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "backend/base/stack_trace.h"

namespace torchwire {
namespace {

bool wantedByEnvironment() {
  const char* const wanted = std::getenv("TORCHWIRE_CHECK_THREADS");
  return wanted != nullptr && *wanted != '\0' && std::string_view(wanted) != "0";
}

std::string threadName() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

// Not by stdio, whose lock another thread may hold.
void writeToStderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) {
      return;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

} // namespace

const bool kThreadChecks = wantedByEnvironment();

void breakRule(const std::string& sentence) {
  static std::atomic_flag broken;
  if (broken.test_and_set()) { // another thread is writing, and will end the process
    for (;;) {
      ::pause();
    }
  }
  writeToStderr(
      "torchwire: a rule of docs/threads.md was broken: " + sentence + ", on thread '" +
      threadName() + "':\n" + stackTrace());
  std::abort();
}

} // namespace torchwire
