// Which process a worker is, in words that other processes of its host understand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace torchwire {

/// A process of some host. Empty by default: not known. A value.
struct ProcessIdentity {
  std::string boot; // the host's, new whenever it starts
  uint64_t pidNamespace = 0; // in which the number counts
  int32_t pid = 0;
  uint64_t startTime = 0; // in ticks since the boot: numbers are used again
  uint64_t stack = 0; // where that of its program begins, which execve draws anew; 0: not known

  bool operator==(const ProcessIdentity&) const = default;

  /// Unknown where /proc does not tell. Read once; a forked child reads it each time.
  static ProcessIdentity ofThisProcess();
  bool isKnown() const {
    return pid != 0;
  }
  /// Whether the number names the same process there and here.
  bool sharesNumbersWith(const ProcessIdentity& other) const;
};

/// What the kernel tells of a process of this namespace.
struct ProcessStatus {
  uint64_t startTime = 0;
  uint64_t stack =
      0; // 0: only those who may trace it may know, or it is executing a program just now
};

/// None if there is no such process, or it may not be seen.
std::optional<ProcessStatus> statusOfProcess(int32_t pid);

} // namespace torchwire
