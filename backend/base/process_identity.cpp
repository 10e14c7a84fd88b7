#include "backend/base/process_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace torchwire {

std::optional<ProcessStatus> statusOfProcess(int32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name = line.rfind(')'); // the second field, which may have anything in it
  if (name == std::string::npos) {
    return std::nullopt;
  }
  constexpr int kBeforeStart = 19; // the start is the 22nd
  constexpr int kBetween = 5; // the stack is the 28th
  std::istringstream fields(line.substr(name + 1));
  const auto skip = [&](int count) {
    std::string skipped;
    for (int i = 0; i < count; ++i) {
      fields >> skipped;
    }
  };
  ProcessStatus status;
  skip(kBeforeStart);
  fields >> status.startTime;
  skip(kBetween);
  fields >> status.stack;
  return fields ? std::optional(status) : std::nullopt;
}

namespace {

ProcessIdentity readOfThisProcess() {
  ProcessIdentity identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot;
  struct stat ns{};
  const auto status = statusOfProcess(::getpid());
  if (identity.boot.empty() || ::stat("/proc/self/ns/pid", &ns) != 0 || !status) {
    return identity;
  }
  identity.pidNamespace = ns.st_ino;
  identity.pid = ::getpid();
  identity.startTime = status->startTime;
  identity.stack = status->stack;
  return identity;
}

} // namespace

ProcessIdentity ProcessIdentity::ofThisProcess() {
  static const ProcessIdentity first = readOfThisProcess();
  return first.pid == ::getpid() ? first : readOfThisProcess();
}

bool ProcessIdentity::sharesNumbersWith(const ProcessIdentity& other) const {
  return isKnown() && other.isKnown() && boot == other.boot && pidNamespace == other.pidNamespace;
}

} // namespace torchwire
