// With which peers there are sealed connections, and how much comes on them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "backend/base/annotations.h"
#include "backend/base/lock_rank.h"
#include "backend/wire/record_cipher.h"

namespace torchwire {

/// Held by shared_ptr. Thread-safe.
class SealedPeers : public std::enable_shared_from_this<SealedPeers> {
 public:
  /// Bytes that have come from a peer, over all its sealed connections since there was none.
  using Arrivals = std::atomic<uint64_t>;
  struct Peer {
    RecordAlgorithm algorithm = RecordAlgorithm::none; // of the latest connection
    std::shared_ptr<Arrivals> arrivals = nullptr; // null: there is no connection
  };

  /// A connection with the peer of that tag, sealed so, counts until what this returns is gone. The bytes that come on it
  /// are to be added there.
  std::shared_ptr<Arrivals> add(uint64_t tag, RecordAlgorithm algorithm) EXCLUDES(mutex_);

  Peer peer(uint64_t tag) const EXCLUDES(mutex_);

 private:
  using Connections = std::multimap<uint64_t, Peer>;
  void remove(Connections::iterator connection) EXCLUDES(mutex_);

  mutable Mutex mutex_{LockRank::sealedPeers};
  Connections connections_ GUARDED_BY(mutex_);
};

} // namespace torchwire
