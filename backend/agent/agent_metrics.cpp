// What the agent tells about itself.
#include <algorithm>
#include <string>
#include <utility>

#include "backend/agent/agent.h"
#include "backend/base/guarded.h"
#include "backend/transport/rejection_log.h"
#include "backend/wire/own_requests.h"

namespace torchwire {

void Agent::addGilWaitTime(const std::chrono::microseconds wait) {
  if (server_) {
    ++server_->metrics().gilWaits;
    server_->metrics().gilWaitMicroseconds += wait.count();
  }
}

std::unordered_map<std::string, std::string> Agent::getMetrics() {
  const Counts now = counts();
  std::unordered_map<std::string, std::string> metrics;
  metrics["agent.thread_pool_size"] = std::to_string(now.threads);
  metrics["agent.num_idle_threads"] = std::to_string(now.threadsIdle);
  metrics["agent.client_active_calls"] = std::to_string(now.callsInFlight);
  if (!server_) {
    return metrics;
  }
  metrics["agent.server_active_calls"] = std::to_string(now.requestsActive);
  metrics["agent.server_active_async_calls"] = std::to_string(now.requestsAsync);
  if (isGILProfilingEnabled()) {
    const int64_t waits = std::max<int64_t>(now.gilWaits, 1);
    metrics["agent.gil_average_wait_time_us"] =
        std::to_string(static_cast<double>(now.gilWait.count()) / static_cast<double>(waits));
  }
  return metrics;
}

std::unordered_map<std::string, std::string> Agent::getDebugInfo() {
  auto info = getMetrics();
  const Counts now = counts();
  info["agent.backend"] = "TORCHWIRE";
  info["agent.protocol_version"] = std::to_string(kProtocolVersion);
  info["agent.backward_mode"] = options_.backwardMode == BackwardMode::smart ? "smart" : "fast";
  info["agent.backward_passes"] = std::to_string(now.backwardPasses);
  info["agent.address"] = address_;
  info["agent.address_chosen_by"] = chosen_.reason;
  if (server_) {
    info["agent.requests_cancelled"] = std::to_string(now.requestsCancelled);
  }
  if (buffers_) {
    info["agent.receive_buffers.bytes_lent"] = std::to_string(now.bufferBytesLent);
    info["agent.receive_buffers.bytes_kept"] = std::to_string(now.bufferBytesKept);
  }
  if (node_.requests().usage()) {
    info["agent.bytes_in_flight"] = std::to_string(now.bytesInFlight);
    info["agent.requests_waiting"] = std::to_string(now.requestsWaiting);
  }
  const cuda::Transfers::Usage transfers = transfers_->usage();
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

Agent::Counts Agent::counts() const {
  Counts counts;
  counts.callsInFlight = activeCalls_.active();
  counts.threads = pools_.requests.capacity();
  counts.threadsIdle = pools_.requests.idle();
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
  if (const auto usage = node_.requests().usage()) {
    counts.bytesInFlight = usage->bytes;
    counts.requestsWaiting = usage->waiting;
  }
  if (buffers_) {
    const BufferPool::Usage usage = buffers_->usage();
    counts.bufferBytesLent = usage.lent;
    counts.bufferBytesKept = usage.kept;
  }
  return counts;
}

std::vector<PeerStatus> Agent::peers() const {
  return node_.links() ? node_.links()->status() : std::vector<PeerStatus>();
}

// ---- where calls are ----------------------------------------------------------------------------

Whereabouts::Worker Agent::whatWhereaboutsLookAt() {
  return {
      self_,
      [this](WorkerId id) { return directory_.describe(id); },
      [this](WorkerId id) { return directory_.nameOf(id); },
      pools_.requests,
      options_.numSpareThreads,
      *pools_.control,
      node_.calls(),
      node_.ownCalls(),
      [this] { return server_ ? &server_->served() : nullptr; },
      [this](WorkerId to, uint64_t callId) { return node_.whyUnsent(to, callId); },
      options_.stackOf};
}

void Agent::lookAfterSlowCalls() {
  // On the timer's thread: sending is for another one.
  node_.calls().watchSlow(options_.slowCallWarning, [this](std::vector<CallTable::Pending> slow) {
    pools_.control->run([this, slow = std::move(slow)] {
      guarded("looking after slow calls", [&] { whereabouts_->lookAfter(slow); });
    });
  });
}

// ---- observers ----------------------------------------------------------------------------------

void Agent::serveObservers() {
  node_.ownCalls().handle(
      own_requests::kObserve,
      [this](WorkerId, const OwnCalls::Body& question, const OwnCalls::Reply& reply) {
        const std::string answer = options_.answer(std::string(question.begin(), question.end()));
        reply({answer.begin(), answer.end()});
      });
}

std::string Agent::askObserver(
    WorkerId to, const std::string& question, std::chrono::milliseconds patience) {
  const OwnCalls::Body answer = node_.ownCalls().ask(
      to, own_requests::kObserve, {question.begin(), question.end()}, patience);
  return {answer.begin(), answer.end()};
}

} // namespace torchwire
