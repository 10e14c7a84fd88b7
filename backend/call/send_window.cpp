#include "backend/call/send_window.h"

#include <utility>

#include "backend/base/guarded.h"

namespace torchwire {

void SendWindow::send(WorkerId to, uint64_t callId, OutgoingFrame request) {
  const size_t bytes = request.bytes();
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[to];
    if (!peer.waiting.empty() || !hasRoom(peer, bytes)) {
      peer.waiting.emplace(callId, Waiting{bytes, std::move(request)});
      return;
    }
    peer.sent.emplace(callId, bytes);
    peer.bytes += bytes;
  }
  send_(to, callId, std::move(request));
}

std::vector<CallTable::Key> SendWindow::ended(const std::vector<CallTable::Key>& calls) {
  std::vector<CallTable::Key> unsent;
  std::vector<OutgoingFrame> dropped; // unlocked
  {
    MutexLock lock(mutex_);
    for (const CallTable::Key& call : calls) {
      const auto found = peers_.find(call.to);
      if (found == peers_.end()) {
        continue;
      }
      Peer& peer = found->second;
      if (const auto sent = peer.sent.find(call.id); sent != peer.sent.end()) {
        peer.bytes -= sent->second;
        peer.sent.erase(sent);
      } else if (const auto waiting = peer.waiting.find(call.id); waiting != peer.waiting.end()) {
        unsent.push_back(call);
        dropped.push_back(std::move(waiting->second.request));
        peer.waiting.erase(waiting);
      }
    }
  }
  for (const OutgoingFrame& request : dropped) {
    request.undo();
  }
  sendWaiting();
  return unsent;
}

std::optional<SendWindow::Next> SendWindow::takeNext() {
  for (auto& [to, peer] : peers_) {
    const auto first = peer.waiting.begin();
    if (first != peer.waiting.end() && hasRoom(peer, first->second.bytes)) {
      peer.sent.emplace(first->first, first->second.bytes);
      peer.bytes += first->second.bytes;
      Next next{to, first->first, std::move(first->second.request)};
      peer.waiting.erase(first);
      return next;
    }
  }
  return std::nullopt;
}

void SendWindow::sendWaiting() {
  MutexLock lock(mutex_);
  if (std::exchange(sending_, true)) {
    return; // whoever is at it looks again
  }
  while (std::optional<Next> next = takeNext()) {
    lock.unlock();
    guarded("sending a request that has waited for room", [&] {
      send_(next->to, next->callId, std::move(next->request));
    });
    next.reset();
    lock.lock();
  }
  sending_ = false;
}

bool SendWindow::isWaiting(WorkerId to, uint64_t callId) const {
  MutexLock lock(mutex_);
  const auto peer = peers_.find(to);
  return peer != peers_.end() && peer->second.waiting.contains(callId);
}

SendWindow::Usage SendWindow::usage() const {
  Usage usage;
  MutexLock lock(mutex_);
  for (const auto& [to, peer] : peers_) {
    usage.bytes += peer.bytes;
    usage.waiting += peer.waiting.size();
  }
  return usage;
}

} // namespace torchwire
