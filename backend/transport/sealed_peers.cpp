#include "backend/transport/sealed_peers.h"

#include <iterator>

namespace torchwire {

std::shared_ptr<SealedPeers::Arrivals> SealedPeers::add(uint64_t tag, RecordAlgorithm algorithm) {
  MutexLock lock(mutex_);
  const auto former = connections_.find(tag);
  const auto arrivals =
      former == connections_.end() ? std::make_shared<Arrivals>(0) : former->second.arrivals;
  const auto connection = connections_.emplace(tag, Peer{algorithm, arrivals});
  return {arrivals.get(), [self = shared_from_this(), connection, arrivals](const Arrivals*) {
            self->remove(connection);
          }};
}

SealedPeers::Peer SealedPeers::peer(uint64_t tag) const {
  MutexLock lock(mutex_);
  const auto [first, end] = connections_.equal_range(tag);
  return first == end ? Peer() : std::prev(end)->second;
}

void SealedPeers::remove(Connections::iterator connection) {
  MutexLock lock(mutex_);
  connections_.erase(connection);
}

} // namespace torchwire
