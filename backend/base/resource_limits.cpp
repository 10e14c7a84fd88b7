#include "backend/base/resource_limits.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace torchwire {
namespace {

// A connection takes a socket and, in its handshake over wire_shm, a memory file; others may be in theirs.
constexpr size_t kNeeded = 3;

std::string sentence(int error) {
  if (error == ENFILE) {
    return "is on a host that has reached its limit of open files: raise it (sysctl fs.file-max)";
  }
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  std::string text = "has reached its limit of " + std::to_string(limit.rlim_cur) +
      " open files (ulimit -n): raise it, or close files";
  if (limit.rlim_max > limit.rlim_cur) {
    text += "; without an administrator up to " + std::to_string(limit.rlim_max);
  }
  return text;
}

} // namespace

std::optional<std::string> reachedFileLimit() {
  std::array<int, kNeeded> opened{};
  int error = 0;
  for (int& descriptor : opened) {
    descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
      error = errno;
    }
  }
  for (const int descriptor : opened) {
    if (descriptor >= 0) {
      close(descriptor);
    }
  }
  return error == EMFILE || error == ENFILE ? std::optional(sentence(error)) : std::nullopt;
}

std::string threadLimits() {
  rlimit limit{};
  getrlimit(RLIMIT_NPROC, &limit);
  const std::string users = limit.rlim_cur == RLIM_INFINITY
      ? "ulimit -u, which is unlimited"
      : "ulimit -u, which is " + std::to_string(limit.rlim_cur);
  return "its process can start no more threads: raise the limit that it has reached, of its user "
         "(" +
      users + "), of its cgroup (pids.max) or of memory (ulimit -v)";
}

} // namespace torchwire
