#include "backend/transport/processes.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace torchwire {
namespace {

bool hasEnded(const Descriptor& process) {
  pollfd asked{process.get(), POLLIN, 0};
  return ::poll(&asked, 1, 0) > 0;
}

} // namespace

Descriptor openProcess(int32_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

Presence presenceOf(const ProcessIdentity& process, const Descriptor& opened, int openError) {
  if (opened.get() < 0) {
    return openError == ESRCH ? Presence::ended : Presence::unknown;
  }
  const auto status = statusOfProcess(process.pid);
  if (hasEnded(opened) || (status && status->startTime != process.startTime)) {
    return Presence::ended;
  }
  if (!status) {
    return Presence::unknown;
  }
  const bool isKnown = status->stack != 0 && process.stack != 0;
  return isKnown && status->stack != process.stack ? Presence::replaced : Presence::lives;
}

Presence presenceOf(const ProcessIdentity& process) {
  if (!ProcessIdentity::ofThisProcess().sharesNumbersWith(process)) {
    return Presence::unknown;
  }
  const Descriptor opened = openProcess(process.pid);
  return presenceOf(process, opened, errno);
}

} // namespace torchwire
