// What went to and came from one peer, counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/link/link.h"

namespace torchwire {

/// Bytes that one transport, with one channel for large tensors, has carried.
struct CarriedBytes {
  std::string transport;
  std::string channel;
  uint64_t sent = 0;
  uint64_t received = 0;
};

/// Since this worker started, over all links to the peer. Not thread-safe.
class Traffic {
 public:
  uint64_t calls = 0; // requests sent
  uint64_t framesSent = 0, framesReceived = 0; // requests and responses
  uint64_t linksLost = 0;

  /// From now on frames go by this link. Before any are added.
  void carryBy(const LinkDescription& link);
  /// A frame.
  void addSent(size_t bytes);
  void addReceived(size_t bytes);
  /// Of all frames.
  uint64_t bytesSent() const;
  uint64_t bytesReceived() const;
  /// One for each pair of transport and channel, the oldest first; all bytes are in one of them.
  const std::vector<CarriedBytes>& carried() const {
    return carried_;
  }

 private:
  std::vector<CarriedBytes> carried_;
  size_t present_ = 0; // the index in carried_
};

} // namespace torchwire
