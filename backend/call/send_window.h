// How much a worker has asked of each peer that has not been answered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/call/call_table.h"
#include "backend/wire/frame.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Bounds the bytes of requests to one peer that are under way: sent, and their calls not over. What comes on top waits
/// here, first come, first served, so that a fast sender cannot fill the memory of a slow receiver. A request larger than
/// the bound goes alone. Thread-safe.
class SendWindow {
 public:
  /// Sends a request. On the thread of send(), or on one that has ended a call: so perhaps on a loop or in the midst of
  /// another send. It may end calls. What it throws there is logged.
  using Send = std::function<void(WorkerId to, uint64_t callId, OutgoingFrame request)>;

  SendWindow(size_t limit, Send send) : limit_(limit), send_(std::move(send)) {}

  /// Sends the request, now or when there is room. Its call is open, and will be reported by ended() unless it has ended
  /// by the time this returns; then the caller does so.
  void send(WorkerId to, uint64_t callId, OutgoingFrame request) EXCLUDES(mutex_);

  /// These calls are over. What waits of them is dropped, and returned is whose that was; those that are unknown, or were
  /// reported before, do not matter.
  std::vector<CallTable::Key> ended(const std::vector<CallTable::Key>& calls) EXCLUDES(mutex_);

  /// Whether the call's request waits for room.
  bool isWaiting(WorkerId to, uint64_t callId) const EXCLUDES(mutex_);

  struct Usage {
    size_t bytes = 0; // under way
    size_t waiting = 0; // requests
  };
  Usage usage() const EXCLUDES(mutex_);

 private:
  struct Waiting {
    size_t bytes;
    OutgoingFrame request;
  };
  struct Peer {
    size_t bytes = 0; // of `sent`
    std::unordered_map<uint64_t, size_t> sent; // the bytes of each call's request
    std::map<uint64_t, Waiting> waiting; // by call: their ids count upwards
  };
  struct Next {
    WorkerId to;
    uint64_t callId;
    OutgoingFrame request;
  };

  bool hasRoom(const Peer& peer, size_t bytes) const {
    return peer.bytes == 0 || peer.bytes + bytes <= limit_;
  }
  std::optional<Next> takeNext() REQUIRES(mutex_);
  void sendWaiting() EXCLUDES(mutex_);

  const size_t limit_;
  const Send send_;
  mutable Mutex mutex_{LockRank::sendWindow};
  std::unordered_map<WorkerId, Peer> peers_ GUARDED_BY(mutex_);
  // Some thread sends what waits: perhaps this one, in whose midst a request that fails at once has ended a call.
  bool sending_ GUARDED_BY(mutex_) = false;
};

} // namespace torchwire
