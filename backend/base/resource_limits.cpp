#include "backend/base/resource_limits.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

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

/// An option of the shell's, which counts in `unit`, and what it is set to.
std::string ulimit(const std::string& option, int resource, size_t unit) {
  rlimit limit{};
  getrlimit(resource, &limit);
  const std::string value = limit.rlim_cur == RLIM_INFINITY ? std::string("unlimited")
                                                            : std::to_string(limit.rlim_cur / unit);
  return "ulimit " + option + ", which is " + value;
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

std::string portLimits() {
  size_t first = 0;
  size_t last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first >> last;
  return "this host has no port left for it: widen the range (sysctl net.ipv4.ip_local_port_range, "
         "which is " +
      std::to_string(first) + " to " + std::to_string(last) + "), or close connections";
}

std::string memoryLimits(size_t bytes) {
  return "its process has no memory for " + std::to_string(bytes) +
      " bytes: raise the limit that it has reached, of its address space (" +
      ulimit("-v", RLIMIT_AS, 1024) + "), of its data (" + ulimit("-d", RLIMIT_DATA, 1024) +
      ") or of its host (sysctl vm.overcommit_memory), or send less at once";
}

size_t memoryOfHost() {
  static const size_t bytes = [] {
    struct sysinfo info{};
    ::sysinfo(&info);
    return (info.totalram + info.totalswap) * info.mem_unit;
  }();
  return bytes;
}

std::string threadLimits() {
  return "its process can start no more threads: raise the limit that it has reached, of its user "
         "(" +
      ulimit("-u", RLIMIT_NPROC, 1) + "), of its cgroup (pids.max) or of memory (ulimit -v)";
}

} // namespace torchwire
