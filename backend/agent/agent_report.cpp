#include "backend/agent/agent_report.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/base/guarded.h"
#include "backend/transport/processes.h"
#include "backend/transport/rejection_log.h"
#include "backend/wire/own_requests.h"

namespace torchwire {

AgentReport::AgentReport(AgentParts& parts) : parts_(parts), whereabouts_(whatWhereaboutsLookAt()) {
  lookAfterSlowCalls();
  serveObservers();
}

AgentReport::Texts AgentReport::metrics() const {
  const Counts now = counts();
  Texts metrics;
  metrics["agent.thread_pool_size"] = std::to_string(now.threads);
  metrics["agent.num_idle_threads"] = std::to_string(now.threadsIdle);
  metrics["agent.client_active_calls"] = std::to_string(now.callsInFlight);
  if (!parts_.server) {
    return metrics;
  }
  metrics["agent.server_active_calls"] = std::to_string(now.requestsActive);
  metrics["agent.server_active_async_calls"] = std::to_string(now.requestsAsync);
  if (parts_.agent.isGILProfilingEnabled()) {
    const int64_t waits = std::max<int64_t>(now.gilWaits, 1);
    metrics["agent.gil_average_wait_time_us"] =
        std::to_string(static_cast<double>(now.gilWait.count()) / static_cast<double>(waits));
  }
  return metrics;
}

AgentReport::Texts AgentReport::debugInfo() const {
  auto info = metrics();
  const Counts now = counts();
  info["agent.backend"] = "TORCHWIRE";
  info["agent.protocol_version"] = std::to_string(kProtocolVersion);
  info["agent.backward_mode"] =
      parts_.options.backwardMode == BackwardMode::smart ? "smart" : "fast";
  info["agent.backward_passes"] = std::to_string(now.backwardPasses);
  info["agent.address"] = parts_.address;
  info["agent.address_chosen_by"] = parts_.chosen.reason;
  if (parts_.server) {
    info["agent.requests_cancelled"] = std::to_string(now.requestsCancelled);
  }
  if (parts_.buffers) {
    info["agent.receive_buffers.bytes_lent"] = std::to_string(now.bufferBytesLent);
    info["agent.receive_buffers.bytes_kept"] = std::to_string(now.bufferBytesKept);
  }
  if (parts_.node.requests().usage()) {
    info["agent.bytes_in_flight"] = std::to_string(now.bytesInFlight);
    info["agent.requests_waiting"] = std::to_string(now.requestsWaiting);
  }
  const cuda::Transfers::Usage transfers = parts_.transfers->usage();
  info["agent.device_tensors_kept"] = std::to_string(transfers.keptTensors);
  info["agent.device_blocks_lent"] = std::to_string(transfers.lent.lent);
  info["agent.device_lane_tensors"] = std::to_string(transfers.laneTensors);
  info["agent.device_block_bytes"] = std::to_string(transfers.lent.bytes);
  for (const PeerStatus& peer : peers()) {
    const std::string key = "agent.peer." + peer.record.name;
    info[key] = std::string(torchwire::nameOf(peer.state)) + " " + peer.link.transport + "/" +
        peer.link.channel;
    info[key + ".address"] = peer.record.address;
    info[key + ".calls"] = std::to_string(peer.traffic.calls);
    info[key + ".frames_sent"] = std::to_string(peer.traffic.framesSent);
    info[key + ".frames_received"] = std::to_string(peer.traffic.framesReceived);
    info[key + ".bytes_sent"] = std::to_string(peer.traffic.bytesSent());
    info[key + ".bytes_received"] = std::to_string(peer.traffic.bytesReceived());
    info[key + ".links_lost"] = std::to_string(peer.traffic.linksLost);
  }
  return info;
}

AgentReport::Counts AgentReport::counts() const {
  Counts counts;
  counts.callsInFlight = parts_.activeCalls.active();
  counts.threads = parts_.pools.requests.capacity();
  counts.threadsIdle = parts_.pools.requests.idle();
  counts.strangersRejected = RejectionLog::countInProcess();
  counts.backwardPasses = parts_.engine->passesStarted();
  if (parts_.server) {
    const ServerMetrics& server = parts_.server->metrics();
    counts.requestsActive = server.active;
    counts.requestsAsync = server.activeAsync;
    counts.requestsCancelled = server.cancelled;
    counts.gilWaits = server.gilWaits;
    counts.gilWait = std::chrono::microseconds(server.gilWaitMicroseconds);
  }
  if (const auto usage = parts_.node.requests().usage()) {
    counts.bytesInFlight = usage->bytes;
    counts.requestsWaiting = usage->waiting;
  }
  if (parts_.buffers) {
    const BufferPool::Usage usage = parts_.buffers->usage();
    counts.bufferBytesLent = usage.lent;
    counts.bufferBytesKept = usage.kept;
  }
  return counts;
}

std::vector<PeerStatus> AgentReport::peers() const {
  return parts_.node.links() ? parts_.node.links()->status() : std::vector<PeerStatus>();
}

std::vector<int32_t> AgentReport::endingProcesses() const {
  std::vector<int32_t> processes;
  for (const PeerStatus& peer : peers()) {
    if (parts_.node.links()->goodbyeOf(peer.record.id).processEnds &&
        presenceOf(peer.record.process) == Presence::lives) {
      processes.push_back(peer.record.process.pid);
    }
  }
  return processes;
}

// ---- where calls are ----------------------------------------------------------------------------

Whereabouts::Worker AgentReport::whatWhereaboutsLookAt() const {
  return {
      parts_.self.id_,
      [this](WorkerId id) { return parts_.directory.describe(id); },
      [this](WorkerId id) { return parts_.directory.nameOf(id); },
      parts_.pools.requests,
      parts_.options.numSpareThreads,
      *parts_.pools.control,
      parts_.node.calls(),
      parts_.node.ownCalls(),
      [this] { return parts_.server ? &parts_.server->served() : nullptr; },
      [this](WorkerId to, uint64_t callId) { return parts_.node.whyUnsent(to, callId); },
      parts_.options.stackOf};
}

void AgentReport::lookAfterSlowCalls() {
  // On the timer's thread: sending is for another one.
  parts_.node.calls().watchSlow(
      parts_.options.slowCallWarning, [this](std::vector<CallTable::Pending> slow) {
        parts_.pools.control->run([this, slow = std::move(slow)] {
          guarded("looking after slow calls", [&] { whereabouts_.lookAfter(slow); });
        });
      });
}

// ---- observers ----------------------------------------------------------------------------------

void AgentReport::serveObservers() {
  parts_.node.ownCalls().handle(
      own_requests::kObserve,
      [this](WorkerId, const OwnCalls::Body& question, const OwnCalls::Reply& reply) {
        const std::string answer =
            parts_.options.answer(std::string(question.begin(), question.end()));
        reply({answer.begin(), answer.end()});
      });
}

std::string AgentReport::askObserver(
    WorkerId to, const std::string& question, std::chrono::milliseconds patience) const {
  const OwnCalls::Body answer = parts_.node.ownCalls().ask(
      to, own_requests::kObserve, {question.begin(), question.end()}, patience);
  return {answer.begin(), answer.end()};
}

} // namespace torchwire
