#include "autograd/pass/discovery.h"

namespace torchwire {

Discovery::Next Discovery::reach(const std::vector<int64_t>& sends) {
  MutexLock lock(mutex_);
  std::vector<int64_t> fresh;
  for (const int64_t send : sends) {
    if (reached_.insert(send).second) {
      fresh.push_back(send);
    }
  }
  return fresh.empty() ? Next() : byWorker(walk_->from(fresh));
}

Discovery::Next Discovery::reachFrom(RootGraph& roots) {
  MutexLock lock(mutex_);
  return byWorker(roots.walkRoots(*walk_));
}

std::set<int64_t> Discovery::reached() const {
  MutexLock lock(mutex_);
  return reached_;
}

Discovery::Next Discovery::byWorker(const std::vector<RemoteSend>& found) {
  Next next;
  for (const RemoteSend& remote : found) {
    next[remote.worker].push_back(remote.send);
  }
  return next;
}

} // namespace torchwire
