// The workers of the group by name and by rank, in PyTorch's type.
#pragma once

#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/annotations.h"
#include "backend/wire/roster.h"

namespace torchwire {

/// Thread-safe. The references that it hands out stay valid for its life: PyTorch keeps them, also for
/// workers that have left a dynamic group.
class WorkerDirectory {
 public:
  using WorkerInfo = torch::distributed::rpc::WorkerInfo;

  /// `self` is named in errors.
  explicit WorkerDirectory(const WorkerInfo& self) : self_(self) {}

  void add(const WorkerRecord& worker) EXCLUDES(mutex_);
  /// `why`: a sentence for those that ask for it by name.
  void remove(WorkerId id, const std::string& why) EXCLUDES(mutex_);

  /// Throw c10::Error when there is no such worker. A rank may be that of one that has left: what is sent to it fails, and
  /// says so.
  const WorkerInfo& byName(const std::string& name) const EXCLUDES(mutex_);
  const WorkerInfo& byId(WorkerId id) const EXCLUDES(mutex_);
  std::vector<WorkerInfo> all() const EXCLUDES(mutex_);
  /// For messages: `worker 'trainer0' (rank 2)`, or the rank alone where nobody has it now.
  std::string describe(WorkerId id) const EXCLUDES(mutex_);
  /// Of who has the rank, or had it last; empty if nobody ever had.
  std::string nameOf(WorkerId id) const EXCLUDES(mutex_);

 private:
  const WorkerInfo* lastOf(WorkerId id) const REQUIRES(mutex_);
  [[noreturn]] void unknown(const std::string& what) const REQUIRES(mutex_);

  const WorkerInfo& self_;
  mutable Mutex mutex_{LockRank::workerDirectory};
  std::map<WorkerId, std::shared_ptr<WorkerInfo>> byId_ GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<WorkerInfo>> byName_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<WorkerInfo>> everSeen_ GUARDED_BY(mutex_);
  std::map<std::string, std::string> removed_ GUARDED_BY(mutex_); // why, by name
};

} // namespace torchwire
