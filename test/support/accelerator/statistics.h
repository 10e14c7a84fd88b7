// Where threads have waited for a device.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace torchwire::accelerator {

/// What a thread waited for.
enum class Wait {
  stream, // synchronizeStream
  event, // synchronizeEvent
  device, // synchronizeDevice
  copy, // a copy that blocks
  item, // a value: tensor.item()
  fallback, // inputs of an operator that runs on the host, which a real device would not wait for
};

/// By the thread's name and the kind of wait.
using WaitCounts = std::map<std::string, std::map<std::string, int64_t>>;

/// Thread-safe.
void countWait(Wait wait);
WaitCounts waitCounts();
void resetWaitCounts();

} // namespace torchwire::accelerator
