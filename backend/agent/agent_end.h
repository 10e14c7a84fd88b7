// How an agent ends: it leaves the group, and its threads end.
#pragma once

#include <chrono>
#include <memory>

#include "backend/agent/agent_parts.h"
#include "backend/agent/caller.h"
#include "backend/link/link_manager.h"

namespace torchwire {

/// Its waits for other workers throw Interrupted where a handler of a signal raises; once interruptShutdown() is called, those
/// of the other workers throw a sentence that says so. Used by one thread at a time, but
/// for explainLeave() and shutDown().
class AgentEnd {
 public:
  AgentEnd(AgentParts& parts, Caller& caller) : parts_(parts), caller_(caller) {}

  /// A static group: returns once every worker has called this that is not dead. A dynamic one: at once.
  /// Throws std::runtime_error that names a worker whose process is gone, or when `timeout` seconds
  /// (0: no limit) are over.
  void waitAllWorkers(float timeout);
  /// Has the others throw that sentence, where this worker does not go on with the shutdown.
  void interruptShutdown();
  /// Lets go what libtorch would wait for, of RRefs, though it has been lost. Of a static group all workers call it, after
  /// waitAllWorkers(), and it throws as that does. `patience`: for the others to say what they hold.
  void settleRRefs(float timeout, std::chrono::milliseconds patience);
  /// A static group: returns when no call of any worker is active any more; `shutdown`: they end then. A dynamic one: leaves
  /// it.
  void join(bool shutdown, float timeout);

  /// Why the agent will be shut down: what its peers' errors say of it.
  void explainLeave(Goodbye goodbye);

  /// Ends all calls and threads, the first time that it is called. `agent` lives as long as its threads; null: it is being
  /// destroyed, and this waits for them.
  void shutDown(const std::shared_ptr<void>& agent);

 private:
  bool awaitPools(const std::shared_ptr<void>& agent);
  void joinPools();
  void warnOfRunning() const;

  AgentParts& parts_;
  Caller& caller_;
  bool hasDoubtfulForks_ = false; // any worker, when all met
};

} // namespace torchwire
