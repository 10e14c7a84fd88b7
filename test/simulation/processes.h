// Processes of the simulation, as one of them sees the others.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "backend/transport/processes.h"

namespace torchwire::simulation {

/// Who watches a process learns of its end a moment later. No process runs another program. Not thread-safe.
class SimulatedProcesses final : public Processes {
 public:
  struct Host {
    /// Whether a process, by its number as in ProcessIdentity, has ended.
    std::function<bool(int32_t pid)> hasEnded;
    /// Runs a task a moment later.
    std::function<void(std::function<void()> task)> soon;
  };
  SimulatedProcesses(ProcessIdentity self, Host host)
      : self_(std::move(self)), host_(std::move(host)) {}

  /// Whether it is on the same host.
  bool sees(const ProcessIdentity& process) const {
    return self_.sharesNumbersWith(process);
  }
  /// A process has ended just now.
  void ended(int32_t pid);

  bool watch(Key key, const ProcessIdentity& process, Ended ended) override;
  void forget(Key key) override {
    watched_.erase(key);
  }
  void look(Key /*key*/) override {}
  bool watches(Key key) const override {
    return watched_.contains(key);
  }

 private:
  struct Watched {
    int32_t pid;
    Ended ended;
  };
  void tellSoon(Key key, int32_t pid);

  const ProcessIdentity self_;
  const Host host_;
  std::map<Key, Watched> watched_;
};

} // namespace torchwire::simulation
