// Which send functions of this worker a pass reaches.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "autograd/pass/local_graph.h"
#include "autograd/pass/pass_messages.h"
#include "backend/base/annotations.h"

namespace torchwire {

/// What this worker has found out in the search for the exact set of one pass. Thread-safe.
class Discovery {
 public:
  /// The send functions that the search has to go on from, by worker.
  using Next = std::map<WorkerId, std::vector<int64_t>>;

  Discovery(const PassId& pass, std::unique_ptr<GraphWalk> walk)
      : pass_(pass), walk_(std::move(walk)) {}

  const PassId& pass() const {
    return pass_;
  }

  /// Walks from those of these send functions that had not been reached before.
  /// Throws what GraphWalk::from throws.
  Next reach(const std::vector<int64_t>& sends) EXCLUDES(mutex_);

  /// Walks from the roots of the pass, which must be on this worker.
  Next reachFrom(RootGraph& roots) EXCLUDES(mutex_);

  std::set<int64_t> reached() const EXCLUDES(mutex_);

 private:
  static Next byWorker(const std::vector<RemoteSend>& found);

  const PassId pass_;
  mutable Mutex mutex_{LockRank::discovery};
  const std::unique_ptr<GraphWalk> walk_;
  std::set<int64_t> reached_ GUARDED_BY(mutex_);
};

} // namespace torchwire
