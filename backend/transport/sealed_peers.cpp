#include "backend/transport/sealed_peers.h"

#include <iterator>

namespace torchwire {

std::shared_ptr<const void> SealedPeers::add(uint64_t tag, RecordAlgorithm algorithm) {
  MutexLock lock(mutex_);
  const auto connection = connections_.emplace(tag, algorithm);
  return {this, [self = shared_from_this(), connection](const void*) { self->remove(connection); }};
}

RecordAlgorithm SealedPeers::algorithmWith(uint64_t tag) const {
  MutexLock lock(mutex_);
  const auto [first, end] = connections_.equal_range(tag);
  return first == end ? RecordAlgorithm::none : std::prev(end)->second;
}

void SealedPeers::remove(Connections::iterator connection) {
  MutexLock lock(mutex_);
  connections_.erase(connection);
}

} // namespace torchwire
