#include "test/simulation/processes.h"

#include <utility>

namespace torchwire::simulation {

bool SimulatedProcesses::watch(Key key, const ProcessIdentity& process, Ended ended) {
  watched_.erase(key);
  if (!sees(process)) {
    return false;
  }
  watched_[key] = {process.pid, std::move(ended)};
  if (host_.hasEnded(process.pid)) {
    tellSoon(key, process.pid);
  }
  return true;
}

void SimulatedProcesses::ended(int32_t pid) {
  for (const auto& [key, watched] : watched_) {
    if (watched.pid == pid) {
      tellSoon(key, pid);
    }
  }
}

void SimulatedProcesses::tellSoon(Key key, int32_t pid) {
  host_.soon([this, key, pid] {
    const auto found = watched_.find(key);
    if (found != watched_.end() && found->second.pid == pid) {
      const Ended ended = std::move(found->second.ended);
      watched_.erase(found);
      ended("has ended");
    }
  });
}

} // namespace torchwire::simulation
