#include "backend/base/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace torchwire {

std::optional<uint64_t> startTimeOf(int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name = line.rfind(')'); // the second field, which may have anything in it
  if (name == std::string::npos) {
    return std::nullopt;
  }
  constexpr int kFieldsBefore = 19; // the start is the 22nd
  std::istringstream fields(line.substr(name + 1));
  std::string skipped;
  for (int i = 0; i < kFieldsBefore; ++i) {
    fields >> skipped;
  }
  uint64_t start = 0;
  return fields >> start ? std::optional(start) : std::nullopt;
}

ProcessIdentity ProcessIdentity::ofThisProcess() {
  ProcessIdentity identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot;
  struct stat ns{};
  const auto start = startTimeOf(::getpid());
  if (identity.boot.empty() || ::stat("/proc/self/ns/pid", &ns) != 0 || !start) {
    return {};
  }
  identity.pidNamespace = ns.st_ino;
  identity.pid = ::getpid();
  identity.startTime = *start;
  return identity;
}

bool ProcessIdentity::sharesNumbersWith(const ProcessIdentity& other) const {
  return isKnown() && other.isKnown() && boot == other.boot && pidNamespace == other.pidNamespace;
}

} // namespace torchwire
