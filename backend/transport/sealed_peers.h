// With which peers there are sealed connections.
#pragma once

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
  /// A connection with the peer of that tag, sealed so, counts until what this returns is gone.
  std::shared_ptr<const void> add(uint64_t tag, RecordAlgorithm algorithm) EXCLUDES(mutex_);

  /// Of the latest such connection; none where there is none.
  RecordAlgorithm algorithmWith(uint64_t tag) const EXCLUDES(mutex_);

 private:
  using Connections = std::multimap<uint64_t, RecordAlgorithm>;
  void remove(Connections::iterator connection) EXCLUDES(mutex_);

  mutable Mutex mutex_{LockRank::sealedPeers};
  Connections connections_ GUARDED_BY(mutex_);
};

} // namespace torchwire
