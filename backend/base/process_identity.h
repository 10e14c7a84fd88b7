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

  bool operator==(const ProcessIdentity&) const = default;

  /// Unknown where /proc does not tell.
  static ProcessIdentity ofThisProcess();
  bool isKnown() const {
    return pid != 0;
  }
  /// Whether the number names the same process there and here.
  bool sharesNumbersWith(const ProcessIdentity& other) const;
};

/// When a process of this namespace was started; none if there is none, or it may not be seen.
std::optional<uint64_t> startTimeOf(int32_t pid);

} // namespace torchwire
