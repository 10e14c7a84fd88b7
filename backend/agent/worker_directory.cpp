#include "backend/agent/worker_directory.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace torchwire {

void WorkerDirectory::add(const WorkerRecord& worker) {
  MutexLock lock(mutex_);
  const auto known = byId_.find(worker.id);
  if (known != byId_.end() && known->second->name_ == worker.name) {
    return; // another incarnation
  }
  auto info = std::make_shared<WorkerInfo>(
      worker.name, static_cast<torch::distributed::rpc::worker_id_t>(worker.id));
  if (known != byId_.end()) { // the rank's former worker, whose goodbye has not come yet
    byName_.erase(known->second->name_);
  }
  everSeen_.push_back(info);
  byId_[worker.id] = info;
  byName_[worker.name] = std::move(info);
  removed_.erase(worker.name);
}

void WorkerDirectory::remove(WorkerId id, const std::string& why) {
  MutexLock lock(mutex_);
  const auto known = byId_.find(id);
  if (known == byId_.end()) {
    return;
  }
  removed_[known->second->name_] = why;
  const auto named = byName_.find(known->second->name_);
  if (named != byName_.end() &&
      named->second == known->second) { // else the name is another rank's by now
    byName_.erase(named);
  }
  byId_.erase(known);
}

const WorkerDirectory::WorkerInfo& WorkerDirectory::byName(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto known = byName_.find(name);
  if (known == byName_.end()) {
    const auto removed = removed_.find(name);
    unknown("name " + name + (removed == removed_.end() ? "" : ": " + removed->second));
  }
  return *known->second;
}

const WorkerDirectory::WorkerInfo& WorkerDirectory::byId(WorkerId id) const {
  MutexLock lock(mutex_);
  const auto known = byId_.find(id);
  if (known != byId_.end()) {
    return *known->second;
  }
  const auto last = lastOf(id);
  if (last == nullptr) {
    unknown("rank " + std::to_string(id));
  }
  return *last;
}

std::vector<WorkerDirectory::WorkerInfo> WorkerDirectory::all() const {
  MutexLock lock(mutex_);
  std::vector<WorkerInfo> infos;
  infos.reserve(byId_.size());
  for (const auto& [id, info] : byId_) {
    infos.push_back(*info);
  }
  return infos;
}

std::string WorkerDirectory::describe(WorkerId id) const {
  MutexLock lock(mutex_);
  const auto known = byId_.find(id);
  const std::string rank = "rank " + std::to_string(id);
  return known == byId_.end() ? "the worker of " + rank
                              : "worker '" + known->second->name_ + "' (" + rank + ")";
}

std::string WorkerDirectory::nameOf(WorkerId id) const {
  MutexLock lock(mutex_);
  const auto last = lastOf(id);
  return last == nullptr ? std::string() : last->name_;
}

const WorkerDirectory::WorkerInfo* WorkerDirectory::lastOf(WorkerId id) const {
  const auto last = std::find_if(
      everSeen_.rbegin(), everSeen_.rend(), [id](const auto& info) { return info->id_ == id; });
  return last == everSeen_.rend() ? nullptr : last->get();
}

void WorkerDirectory::unknown(const std::string& what) const {
  std::string known;
  for (const auto& [name, info] : byName_) {
    known += (known.empty() ? "'" : ", '") + name + "'";
  }
  TORCH_CHECK(
      false, "worker '", self_.name_, "' (rank ", self_.id_, ") could not find destination ", what,
      "; the workers in its group are ", known);
}

} // namespace torchwire
