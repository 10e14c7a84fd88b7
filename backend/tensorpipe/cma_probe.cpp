#include "backend/tensorpipe/cma_probe.h"

#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>

namespace torchwire {
namespace {

/// 0, or the error with which this process may not even read itself: then a filter of system calls denies it.
int errorOfReadingOneself() {
  uint64_t value = 0x5eed;
  uint64_t copy = 0;
  const iovec remote{&value, sizeof value};
  const iovec local{&copy, sizeof copy};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) < 0 ? errno : 0;
}

bool hasEqualIds() {
  uid_t user = 0;
  uid_t effectiveUser = 0;
  uid_t savedUser = 0;
  gid_t group = 0;
  gid_t effectiveGroup = 0;
  gid_t savedGroup = 0;
  getresuid(&user, &effectiveUser, &savedUser);
  getresgid(&group, &effectiveGroup, &savedGroup);
  return user == effectiveUser && user == savedUser && group == effectiveGroup &&
      group == savedGroup;
}

} // namespace

// The order and the remedies are those of the doctor (machine_checks.py).
Objection whyNoCma(const std::string& yama) {
  if (const int error = errorOfReadingOneself(); error != 0) {
    return {
        std::string("process_vm_readv: ") + std::strerror(error),
        "permit process_vm_readv in the container's seccomp profile, or add the capability "
        "SYS_PTRACE to it"};
  }
  if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1) {
    return {
        "the process is not dumpable, so others may not read it",
        "make the Python interpreter readable for its user, and start workers without "
        "prctl(PR_SET_DUMPABLE, 0)"};
  }
  if (!hasEqualIds()) {
    return {
        "the process has several user or group ids at a time",
        "start workers as one user and group, and not through a set-user-id program"};
  }
  int scope = 0;
  if (std::ifstream(yama) >> scope && scope > 1) {
    return {
        "Yama's ptrace_scope is " + std::to_string(scope),
        std::string("set it to 1 or less: sysctl kernel.yama.ptrace_scope=1") +
            (scope > 2 ? " (from 3, only after a restart of the machine)" : "")};
  }
  return {"TensorPipe does not find it viable on this machine", ""};
}

} // namespace torchwire
