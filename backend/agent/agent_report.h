// What an agent tells about itself, its calls and its peers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/agent/agent_parts.h"
#include "backend/call/call_table.h"
#include "backend/call/metrics.h"
#include "backend/call/served_calls.h"
#include "backend/link/link_manager.h"
#include "backend/node/whereabouts.h"
#include "backend/wire/roster.h"
#include "cuda/transfer/transfers.h"

namespace torchwire {

/// Watches slow calls, and answers observers and callers, from its construction on. Thread-safe.
class AgentReport {
 public:
  using Texts = std::unordered_map<std::string, std::string>;

  /// Before the first request.
  explicit AgentReport(AgentParts& parts);
  AgentReport(const AgentReport&) = delete;
  AgentReport& operator=(const AgentReport&) = delete;

  /// What has been counted. What a worker that has not started has nothing of is 0.
  struct Counts {
    int64_t callsInFlight = 0;
    int64_t requestsActive = 0; // that came and are not answered
    int64_t requestsAsync = 0; // of these, whose function has left a future
    int64_t requestsCancelled = 0;
    uint64_t threads = 0; // for requests, at most
    uint64_t threadsIdle = 0;
    int64_t gilWaits = 0;
    std::chrono::microseconds gilWait{0};
    uint64_t strangersRejected = 0;
    uint64_t backwardPasses = 0;
    size_t bytesInFlight = 0; // of requests that count, see AgentOptions::maxBytesInFlight
    size_t requestsWaiting = 0; // for room
    size_t bufferBytesLent = 0, bufferBytesKept = 0;
  };
  Counts counts() const;
  /// The same, and more, as RpcAgent::getMetrics() and getDebugInfo() have it.
  Texts metrics() const;
  Texts debugInfo() const;

  std::vector<PeerStatus> peers() const;
  /// The processes on this host, which have not ended yet, of peers that left since they would.
  std::vector<int32_t> endingProcesses() const;
  /// Calls of this worker that are under way, and requests of peers that are not answered; the oldest first.
  std::vector<CallTable::Pending> pendingCalls() const {
    return parts_.node.calls().pending();
  }
  std::vector<ServedCalls::Status> servedCalls() const {
    return parts_.server ? parts_.server->served().all() : std::vector<ServedCalls::Status>();
  }
  /// Where calls are: each in a sentence, or with a stack behind it.
  const Whereabouts& whereabouts() const {
    return whereabouts_;
  }
  /// Which way large tensors take to the worker, by each entry of the device map for it.
  std::vector<cuda::DevicePaths::Explanation> explainDevices(WorkerId peer) const {
    return parts_.transfers->explain(peer);
  }
  /// What the worker's AgentOptions::answer says to the question. On a thread that may block, without the GIL. Not one of
  /// the calls that shutdown waits for. Throws std::runtime_error where there is no answer within `patience`.
  std::string askObserver(
      WorkerId to, const std::string& question, std::chrono::milliseconds patience) const;

 private:
  Whereabouts::Worker whatWhereaboutsLookAt() const;
  void lookAfterSlowCalls();
  void serveObservers();

  AgentParts& parts_;
  const Whereabouts whereabouts_;
};

} // namespace torchwire
