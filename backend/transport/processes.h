// Processes of this host: whether they live, and who notices that they end.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backend/base/process_identity.h"
#include "backend/transport/handshake_socket.h"

namespace torchwire {

/// Replaced: the process runs another program by now (execve), in which nothing is left of the former one's.
enum class Presence { lives, ended, replaced, unknown };
/// Of a process at this moment. Unknown: it is on another host or in another namespace, or may not be seen.
Presence presenceOf(const ProcessIdentity& process);
/// The same, of what has been opened under its number, or why that failed (errno).
Presence presenceOf(const ProcessIdentity& process, const Descriptor& opened, int openError);
/// A descriptor of the kernel's for a process (pidfd); none: errno says why.
Descriptor openProcess(int32_t pid);
inline bool isOver(Presence presence) {
  return presence == Presence::ended || presence == Presence::replaced;
}

/// Processes, each under a key of its own, whose ends are noticed. Thread-safe.
class Processes {
 public:
  /// Called once when the process is over, with how: "has ended". On any thread; it does not block.
  using Ended = std::function<void(const std::string& how)>;
  using Key = int32_t;

  virtual ~Processes() = default;
  /// Watches a process in place of the one that was watched under the same key. False: it cannot be watched, since it is
  /// on another host or in another namespace, or since this host does not let processes be watched. A process that is
  /// gone already, be it that another one has its number now, has ended.
  virtual bool watch(Key key, const ProcessIdentity& process, Ended ended) = 0;
  virtual void forget(Key key) = 0;
  /// Finds out whether the process runs another program by now, which the kernel does not announce: as its end.
  virtual void look(Key key) = 0;
  /// Whether a process is watched under the key, and lives as far as is known.
  virtual bool watches(Key key) const = 0;
};

} // namespace torchwire
