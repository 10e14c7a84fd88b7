// What the agent tells about itself.
#include <algorithm>
#include <string>

#include "backend/agent/agent.h"
#include "backend/transport/rejection_log.h"

namespace torchwire {

void Agent::addGilWaitTime(const std::chrono::microseconds wait) {
  if (server_) {
    ++server_->metrics().gilWaits;
    server_->metrics().gilWaitMicroseconds += wait.count();
  }
}

std::unordered_map<std::string, std::string> Agent::getMetrics() {
  std::unordered_map<std::string, std::string> metrics;
  metrics["agent.thread_pool_size"] = std::to_string(requests_.capacity());
  metrics["agent.num_idle_threads"] = std::to_string(requests_.idle());
  metrics["agent.client_active_calls"] = std::to_string(activeCalls_.active());
  if (!server_) {
    return metrics;
  }
  const ServerMetrics& server = server_->metrics();
  metrics["agent.server_active_calls"] = std::to_string(server.active);
  metrics["agent.server_active_async_calls"] = std::to_string(server.activeAsync);
  if (isGILProfilingEnabled()) {
    const int64_t waits = std::max<int64_t>(server.gilWaits, 1);
    metrics["agent.gil_average_wait_time_us"] = std::to_string(
        static_cast<double>(server.gilWaitMicroseconds) / static_cast<double>(waits));
  }
  return metrics;
}

std::unordered_map<std::string, std::string> Agent::getDebugInfo() {
  auto info = getMetrics();
  info["agent.backend"] = "TORCHWIRE";
  info["agent.protocol_version"] = std::to_string(kProtocolVersion);
  info["agent.backward_mode"] = options_.backwardMode == BackwardMode::smart ? "smart" : "fast";
  info["agent.backward_passes"] = std::to_string(engine_->passesStarted());
  info["agent.address"] = address_;
  info["agent.address_chosen_by"] = chosen_.reason;
  if (server_) {
    info["agent.requests_cancelled"] = std::to_string(server_->metrics().cancelled);
  }
  if (buffers_) {
    const BufferPool::Usage usage = buffers_->usage();
    info["agent.receive_buffers.bytes_lent"] = std::to_string(usage.lent);
    info["agent.receive_buffers.bytes_kept"] = std::to_string(usage.kept);
  }
  if (window_) {
    const SendWindow::Usage usage = window_->usage();
    info["agent.bytes_in_flight"] = std::to_string(usage.bytes);
    info["agent.requests_waiting"] = std::to_string(usage.waiting);
  }
  const cuda::Transfers::Usage transfers = transfers_->usage();
  info["agent.device_tensors_kept"] = std::to_string(transfers.keptTensors);
  info["agent.device_blocks_lent"] = std::to_string(transfers.lent.lent);
  info["agent.device_lane_tensors"] = std::to_string(transfers.laneTensors);
  info["agent.device_block_bytes"] = std::to_string(transfers.lent.bytes);
  for (const PeerStatus& peer : peers()) {
    const std::string key = "agent.peer." + peer.record.name;
    info[key] =
        std::string(nameOf(peer.state)) + " " + peer.link.transport + "/" + peer.link.channel;
    info[key + ".address"] = peer.record.address;
    info[key + ".calls"] = std::to_string(peer.traffic.calls);
    info[key + ".frames_sent"] = std::to_string(peer.traffic.framesSent);
    info[key + ".frames_received"] = std::to_string(peer.traffic.framesReceived);
    info[key + ".bytes_sent"] = std::to_string(peer.traffic.bytesSent);
    info[key + ".bytes_received"] = std::to_string(peer.traffic.bytesReceived);
    info[key + ".links_lost"] = std::to_string(peer.traffic.linksLost);
  }
  return info;
}

Agent::Counts Agent::counts() const {
  Counts counts;
  counts.callsInFlight = activeCalls_.active();
  counts.threads = requests_.capacity();
  counts.threadsIdle = requests_.idle();
  counts.strangersRejected = RejectionLog::countInProcess();
  counts.backwardPasses = engine_->passesStarted();
  if (server_) {
    const ServerMetrics& server = server_->metrics();
    counts.requestsActive = server.active;
    counts.requestsAsync = server.activeAsync;
    counts.requestsCancelled = server.cancelled;
    counts.gilWaits = server.gilWaits;
    counts.gilWait = std::chrono::microseconds(server.gilWaitMicroseconds);
  }
  if (window_) {
    const SendWindow::Usage usage = window_->usage();
    counts.bytesInFlight = usage.bytes;
    counts.requestsWaiting = usage.waiting;
  }
  if (buffers_) {
    const BufferPool::Usage usage = buffers_->usage();
    counts.bufferBytesLent = usage.lent;
    counts.bufferBytesKept = usage.kept;
  }
  return counts;
}

std::vector<PeerStatus> Agent::peers() const {
  return links_ ? links_->status() : std::vector<PeerStatus>();
}

} // namespace torchwire
