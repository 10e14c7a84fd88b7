// What a fault can do to a whole process.
#pragma once

#include <memory>

namespace torchwire::faults {

/// The process that a fault hits; tests put another in its place. Thread-safe.
class Process {
 public:
  virtual ~Process() = default;

  /// All threads stand still for so long.
  virtual void pause(double seconds) = 0;
  /// Ends at once, as by kill -9.
  virtual void kill() = 0;
};

/// The one that this runs in.
std::shared_ptr<Process> thisProcess();

} // namespace torchwire::faults
